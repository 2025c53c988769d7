"""The means to run cases on workers of a Dask cluster, apart from the cases themselves.

Addresses of schedulers, abilities of workers and needs of cases, images by their content, and the
returned folder of a run. Dask's scheduler does all coordination.
"""
