-- Eager work in backward bears the region of the forward operator whose gradient it computes.

ALTER TABLE gpu_event ADD COLUMN phase VARCHAR; -- eager work in a region: forward, backward; NULL: as before this column, forward
