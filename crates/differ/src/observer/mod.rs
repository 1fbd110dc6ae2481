//! `observe`: reads what the kernel shows of a process and all its descendants, while all of them are stopped.

mod descriptors;
mod identifiers;
mod injected_calls;
mod mappings;
mod process_files;
mod sockets;
mod threads;
mod tree;

use std::io;

use farfork_fork::capture::CaptureError;
use farfork_sys::process::EpollSlot;

use crate::Observation;
use identifiers::IdentifierMap;
use tree::StoppedTree;

/// Why a process cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A process cannot be stopped.
    #[error(transparent)]
    Stop(#[from] CaptureError),
    /// State that the kernel shows cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file or directory.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The process has more descendants than the limit.
    #[error("it has more than {0} descendants, which is the limit of a comparison")]
    TooManyProcesses(usize),
}

impl ObserveError {
    fn read(path: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }
}

/// Observes a process and all its descendants, and stops them during the observation. Blocks, and traces the processes with
/// ptrace(2): call it from a thread that ends afterwards.
///
/// # Errors
/// [`ObserveError`]; all processes are resumed.
pub fn observe(pid: i32) -> Result<Observation, ObserveError> {
    let mut tree = StoppedTree::stop(pid)?;
    let names = IdentifierMap::new(&tree)?;
    let mut fields = ObservationBuilder {
        observation: Observation::new(),
        prefix: String::new(),
        names,
        epoll_registrations: Vec::new(),
    };
    for process in tree.processes_mut() {
        fields.prefix = process.inner_id.to_string();
        fields.put("has ended", process.standstill.is_none());
        if process.standstill.is_none() {
            continue;
        }
        process_files::read_process_files(process.pid, &mut fields)?;
        mappings::read_mappings(process.pid, &mut fields)?;
        descriptors::read_descriptors(process.pid, &mut fields)?;
        threads::read_threads(process.pid, &mut fields)?;
    }
    descriptors::put_epoll_registrations(&mut fields);
    for process in tree.processes_mut() {
        fields.prefix = process.inner_id.to_string();
        let Some(standstill) = &mut process.standstill else { continue };
        // Last, because it maps pages in the process.
        injected_calls::read_by_injected_calls(process.pid, standstill, &mut fields)?;
    }
    Ok(fields.observation)
}

/// An observation under construction, and the current process.
struct ObservationBuilder {
    observation: Observation,
    /// Id of the process in its own pid namespace.
    prefix: String,
    names: IdentifierMap,
    /// The registrations of all epoll instances.
    epoll_registrations: Vec<EpollRegistration>,
}

/// A registration of an epoll instance. The file that it watches is named when all descriptors are known.
struct EpollRegistration {
    field: String,
    slot: EpollSlot,
    /// The events, and the program's data.
    events: String,
}

impl ObservationBuilder {
    fn put(&mut self, field: &str, value: impl ToString) {
        self.observation.insert(format!("{}/{field}", self.prefix), value.to_string());
    }

    /// Stores the value, or the kernel's error, which is also compared.
    fn put_result(&mut self, field: &str, value: io::Result<impl ToString>) {
        match value {
            Ok(value) => self.put(field, value),
            Err(error) => self.put(field, error_name(&error)),
        }
    }
}

fn error_name(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| format!("errno {number}"))
}

/// Formats 4 or 8 bytes as a number, and any other bytes in hexadecimal.
fn bytes_text(bytes: &[u8]) -> String {
    match bytes.len() {
        4 => i32::from_ne_bytes(std::array::from_fn(|at| bytes[at])).to_string(),
        8 => u64::from_ne_bytes(std::array::from_fn(|at| bytes[at])).to_string(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
