//! The methods that create or pause processes: farfork, and its floors.

use serde::Serialize;

/// The method that creates a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CreateMethod {
    Farfork,
    /// A floor: the kernel's work for a child in a container.
    BareContainer,
    /// A floor: fork(2) into the namespaces of an existing container.
    LocalForkIntoNamespaces,
    /// A floor: fork(2).
    LocalFork,
}

impl CreateMethod {
    /// The methods that every machine supports.
    pub(crate) const ON_EVERY_MACHINE: [Self; 3] = [Self::Farfork, Self::LocalForkIntoNamespaces, Self::LocalFork];
}

/// The mechanism that pauses and unpauses a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PauseMethod {
    /// Requests to the child's node.
    Farfork,
    /// The child's freezer, opened by a client of its node.
    FarforkHandle,
    /// A floor: a local fork, and the freezer of its control group.
    BareFreezer,
    /// A floor: a local fork, SIGSTOP and SIGCONT.
    Signals,
}

impl PauseMethod {
    pub(crate) const ALL: [Self; 4] = [Self::Farfork, Self::FarforkHandle, Self::BareFreezer, Self::Signals];

    /// farfork by requests, and the floors.
    pub(crate) const REQUESTS_AND_FLOORS: [Self; 3] = [Self::Farfork, Self::BareFreezer, Self::Signals];
}
