-- _region_codes: A number from 1 on for every region and phase of graph work in the store.
--
-- How to read it: the numbers hold for one state of the store only.
SELECT region, phase, row_number() OVER (ORDER BY region ASC NULLS LAST, phase ASC NULLS LAST) AS code
FROM annotation
WHERE region IS NOT NULL
GROUP BY region, phase
