//! Filters of system calls (seccomp(2)): each thread installs its own as the last thing before it enters its frame, so what they
//! are installed from stands where it stays.
//!
//! ```text
//!  ┌─ instructions of each filter ─┬─ struct sock_fprog of each ─┬─ a list for each thread that has some ─┐
//!  │ 8 bytes each                  │ length, address             │ operation, flags, address; …; 0        │
//!  └───────────────────────────────┴─────────────────────────────┴────────────────────────────────────────┘
//! ```

use farfork_wire::Descriptor;

const INSTRUCTION_BYTES: u64 = 8;
const PROGRAM_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 24;

/// SECCOMP_SET_MODE_FILTER.
const SET_FILTER: u64 = 1;

/// How much room they take, in bytes.
pub(super) fn bytes(descriptor: &Descriptor) -> u64 {
    let instructions: u64 = descriptor.process.seccomp_filters.iter().map(|one| one.instructions.len() as u64).sum();
    let programs = descriptor.process.seccomp_filters.len() as u64 * PROGRAM_BYTES;
    let lists = lists(descriptor).map(|list| (list.len() as u64 + 1) * ENTRY_BYTES);
    instructions + programs + lists.sum::<u64>()
}

/// Their contents, to stand at `base`, and the address of each thread's list; 0 for a thread without filters.
pub(super) fn build(descriptor: &Descriptor, base: u64) -> (Vec<u8>, Vec<u64>) {
    let filters = &descriptor.process.seccomp_filters;
    let mut bytes: Vec<u8> = filters.iter().flat_map(|filter| &filter.instructions).copied().collect();
    let programs = base + bytes.len() as u64;
    let mut instructions = base;
    for filter in filters {
        let length = filter.instructions.len() as u64;
        put(&mut bytes, &[length / INSTRUCTION_BYTES, instructions]);
        instructions += length;
    }
    let mut places = Vec::with_capacity(descriptor.threads.len());
    for thread in &descriptor.threads {
        let is_free = thread.seccomp_filters.is_empty();
        places.push(if is_free { 0 } else { base + bytes.len() as u64 });
        for index in &thread.seccomp_filters {
            let program = programs + u64::from(*index) * PROGRAM_BYTES;
            put(&mut bytes, &[SET_FILTER, filters[*index as usize].flags.into(), program]);
        }
        if !is_free {
            put(&mut bytes, &[0; 3]);
        }
    }
    (bytes, places)
}

fn lists(descriptor: &Descriptor) -> impl Iterator<Item = &Vec<u32>> {
    descriptor.threads.iter().map(|thread| &thread.seccomp_filters).filter(|list| !list.is_empty())
}

fn put(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
}
