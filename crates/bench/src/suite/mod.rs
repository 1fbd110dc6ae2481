//! The suite: all benchmarks, one after the other, each as a separate process. `farfork bench all` runs it.

// entry: the table of benchmarks ──▶ run: starts each ──▶ child_run: one process
//                                      └─▶ outcome: how each ended, in the file `suite.json`

mod child_run;
pub(crate) mod entry;
pub(crate) mod outcome;
pub(crate) mod run;
