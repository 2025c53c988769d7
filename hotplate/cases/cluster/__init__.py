"""Cases on the workers of a Dask cluster, whose scheduler does all coordination."""
