-- The passwords of docker/compose.yaml. Use them nowhere else.
ALTER ROLE orderpost_app PASSWORD 'orderpost';
