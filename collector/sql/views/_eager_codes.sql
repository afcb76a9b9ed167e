-- _eager_codes: A number from -1 down for every region and phase of eager work in the store.
--
-- How to read it: apart from _region_codes, because the join of events with annotations is planned twice as well when no
-- events are counted in the small table. The numbers hold for one state of the store only.
SELECT
    region,
    coalesce(phase, 'forward') AS phase,
    -row_number() OVER (ORDER BY region ASC NULLS LAST, coalesce(phase, 'forward') ASC NULLS LAST) AS code
FROM gpu_event
WHERE region IS NOT NULL
GROUP BY region, coalesce(phase, 'forward')
