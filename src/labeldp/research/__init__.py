# SPDX-License-Identifier: Apache-2.0
"""Research: mechanisms and methods of published experiments, not meant for deployment. No other
part of the package imports this one.

labeldp.research.peer     the peer-to-peer mechanism; importing it registers its query, `Peer`, for
                          `labeldp.aggregate` and for files
labeldp.research.ssl      self-supervised learning on images: SimCLR, BYOL, SCAN (extra `torch`)
labeldp.research.embed    trained nets and sentence encoders as embedders (extra `torch`; for
                          weights that packages ship, `embed`)
labeldp.research.nets     the recommender of the MovieLens experiment of Ghazi et al. 2021 (extra
                          `torch`)
"""
