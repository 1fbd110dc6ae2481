//! The seccomp(2) filters of a plan. `restorer/threads.c` installs them as the last step before a thread enters its
//! frame, so they are in the part of the region that stays mapped. Filters that all threads of a process have are
//! installed once for all of them (SECCOMP_FILTER_FLAG_TSYNC). Then the threads have them from one ancestor, as in the
//! parent, and can get further common filters. Each thread installs its remaining filters itself.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::{SeccompFilter, Thread};

use super::bpf_interpreter::PlannedSyscall;

const INSTRUCTION_BYTES: u64 = 8;

/// SECCOMP_SET_MODE_FILTER.
const SECCOMP_SET_MODE_FILTER: u64 = 1;

/// SECCOMP_FILTER_FLAG_TSYNC.
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;

/// Filters, and where they are.
pub(super) struct SeccompFilterTable {
    pub(super) bytes: Vec<u8>,
    /// The address of each thread's own list; 0 for none.
    pub(super) thread_lists: Vec<u64>,
    /// The address of what all have in common; 0 for nothing.
    pub(super) common_list: u64,
}

/// How much room they take, in bytes.
pub(super) fn table_bytes(descriptor: &Descriptor) -> u64 {
    build_table(descriptor, 0).bytes.len() as u64
}

//  ┌─ instructions of each filter ─┬─ struct sock_fprog of each ─┬─ common ────────────────────┬─ a list for each thread ─┐
//  │ 8 bytes each                  │ length, address             │ struct plan_common_filters, │ for each thread          │
//  │                               │                             │ which ends with a list      │ with filters of its own  │
//  └───────────────────────────────┴─────────────────────────────┴─────────────────────────────┴──────────────────────────┘
//  a list: operation, flags, address; …; 0
/// Their contents, to stand at `base`.
pub(super) fn build_table(descriptor: &Descriptor, base: u64) -> SeccompFilterTable {
    let filters = &descriptor.process.seccomp_filters;
    let mut bytes: Vec<u8> = filters.iter().flat_map(|filter| &filter.instructions).copied().collect();
    let mut programs = Vec::with_capacity(filters.len());
    let mut instructions = base;
    for filter in filters {
        programs.push(base + bytes.len() as u64);
        let length = filter.instructions.len() as u64;
        append_words(&mut bytes, &[length / INSTRUCTION_BYTES, instructions]);
        instructions += length;
    }
    let entry = |index: &u32, flags: u64| {
        [SECCOMP_SET_MODE_FILTER, u64::from(filters[*index as usize].flags) | flags, programs[*index as usize]]
    };
    let shared = find_common_filters(descriptor);
    let mut common = 0;
    if !shared.is_empty() {
        common = base + bytes.len() as u64;
        append_words(&mut bytes, &encode_common_header(descriptor, shared, common));
        shared.iter().for_each(|index| append_words(&mut bytes, &entry(index, SECCOMP_FILTER_FLAG_TSYNC)));
        append_words(&mut bytes, &[0; 3]);
    }
    let mut thread_lists = Vec::with_capacity(descriptor.threads.len());
    for thread in &descriptor.threads {
        let list = &thread.seccomp_filters[shared.len()..];
        thread_lists.push(if list.is_empty() { 0 } else { base + bytes.len() as u64 });
        list.iter().for_each(|index| append_words(&mut bytes, &entry(index, 0)));
        if !list.is_empty() {
            append_words(&mut bytes, &[0; 3]);
        }
    }
    SeccompFilterTable { bytes, thread_lists, common_list: common }
}

/// The filters that all threads have, from their first one on. The kernel reports which programs a thread has, not which of them it shares
/// with another thread. Filters that all threads have in the same order count as shared, the others as each thread's own.
///
/// Who installs them for others makes these keep from new privileges as it
/// is kept itself: threads that differ in that install their own.
fn find_common_filters(descriptor: &Descriptor) -> &[u32] {
    let Some((leader, others)) = descriptor.threads.split_first().filter(|(_, others)| !others.is_empty()) else {
        return &[];
    };
    let is_kept =
        |thread: &Thread| thread.credentials.as_ref().unwrap_or(&descriptor.process.credentials).no_new_privileges;
    if others.iter().any(|thread| is_kept(thread) != is_kept(leader)) {
        return &[];
    }
    let of_leader = &leader.seccomp_filters;
    let in_common =
        |thread: &Thread| of_leader.iter().zip(&thread.seccomp_filters).take_while(|(one, other)| one == other).count();
    &of_leader[..others.iter().map(in_common).min().unwrap_or(0)]
}

/// `struct plan_common_filters`, which stands at `address`: how many threads wait and whether they may go; where they wait, and how many there
/// are; whether they can be woken under the filters.
fn encode_common_header(descriptor: &Descriptor, shared: &[u32], address: u64) -> [u64; 3] {
    const WAKE_FUTEX_OFFSET: u64 = 8;
    const SYS_FUTEX: u32 = 202;
    const FUTEX_WAKE_PRIVATE: u64 = 129;
    let filters = &descriptor.process.seccomp_filters;
    let arguments = [address + WAKE_FUTEX_OFFSET, FUTEX_WAKE_PRIVATE, i32::MAX as u64, 0, 0, 0];
    let wake = PlannedSyscall { number: SYS_FUTEX, instruction_pointer: 0, arguments };
    let allows = |filter: &SeccompFilter| wake.is_allowed_by(&filter.instructions);
    let can_wake = shared.iter().all(|index| allows(&filters[*index as usize]));
    let others = descriptor.threads.len() as u64 - 1;
    [0, others << 32, u64::from(can_wake)]
}

fn append_words(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
}
