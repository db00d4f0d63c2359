# SPDX-License-Identifier: Apache-2.0
"""Research: methods of published experiments that are not meant for deployment. No other part of the package imports this one.

labeldp.research.peer     the peer-to-peer mechanism; importing it makes its query, `Peer`, known to `labeldp.aggregate` and to files
labeldp.research.ssl      learning from images alone: SimCLR, BYOL, SCAN (extra `torch`)
labeldp.research.embed    trained nets and sentence encoders as embedders of clusters (extra `torch`)
labeldp.research.nets     the recommender of the source paper's MovieLens experiment (extra `torch`)
"""
