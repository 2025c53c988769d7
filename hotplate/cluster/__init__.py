"""What cases need to run on workers of a Dask cluster, apart from the cases themselves.

Addresses of schedulers, what a worker can do and a case needs, images by their content, and the
folder of a run on its way back.  Dask's scheduler is all the coordination there is.
"""
