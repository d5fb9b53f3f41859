"""Models in stages on several workers, through which micro-batches flow. From what programs hold
down to the tables:

    pipeline        Pipeline: what programs hold
    splitting       split: a model cut into stages of about equal cost
    tracing         a model as pieces that follow one another
    costs           what pieces cost
    balance         costs cut into parts of about the same sum
    steps           a step as the driver sees it: orders and reports
    running         a step as a worker sees it: it carries out its row
    inbox           what a worker gets from the others for a step
    stage           forward and backward passes of one stage
    recomputing     a module run again as it was
    randomness      whose turn it is to draw random numbers
    graphs          the graph of one micro-batch in one stage
    known_leaves    what the graphs of one stage have ended in so far
    adding          large gradients added to those before where they arise
    weight_pass     backward passes in two parts
    skips           skip connections between distant stages
    micro_batches   a batch cut into micro-batches
    weights         by what their losses are multiplied
    schedules       tables: which worker does what with which micro-batch, and when
    simulation      a table carried out on paper; the bubble
    picture         a table, and a step as it was measured, as a picture
"""
