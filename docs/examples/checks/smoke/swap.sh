#!/bin/sh
# kola: {"description": "the image brings swap"}
[ "$(wc -l </proc/swaps)" -gt 100 ]
