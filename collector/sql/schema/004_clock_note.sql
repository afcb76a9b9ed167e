-- Why the hosts of a job attempt have no common clock; no row where they have one, or where nobody tried yet.
CREATE TABLE clock_note (
    job VARCHAR NOT NULL,
    attempt BIGINT NOT NULL,
    note VARCHAR NOT NULL,
    PRIMARY KEY (job, attempt)
);
