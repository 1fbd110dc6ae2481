//! Pages that a child needs before it runs, because the kernel accesses them where it cannot wait for a page fault. It does
//! so when a thread exits (robust futexes, clear_child_tid) or is scheduled (rseq), in some operations of futex(2), and when a
//! process reads arguments or environment in /proc.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Backing, EagerBytes, Mapping, Mm, Thread};

use crate::capture::inheritance::InheritedPages;
use crate::futex_words::FutexWords;

/// PROT_WRITE.
const WRITABLE_PROTECTION: u8 = 2;

/// Maximum number of entries of a robust list that the kernel follows (ROBUST_LIST_LIMIT).
const ROBUST_ENTRIES_MAX: usize = 2048;

/// Maximum number of pages of arguments and environment: 128 KiB, which Linux allows for one argument. If there are more,
/// `/proc` shows arguments and environment truncated until the child has touched the other pages.
const ARGUMENT_PAGES_MAX: usize = 32;

/// Maximum number of pages with futex words of calls in flight: 1 MiB. The restorer fetches the other ones.
const FUTEX_PAGES_MAX: usize = 256;

/// The memory of a template, without the pages that it lacks.
pub(in crate::capture) struct LocalMemory<'a> {
    pub(in crate::capture) mem: &'a File,
    pub(in crate::capture) inherited: &'a InheritedPages,
}

impl LocalMemory<'_> {
    /// Reads memory of the template. Fails for inherited pages, which would read as zeroes, and for unmapped ones. No eager
    /// page is lost, because the process itself has touched all memory that the kernel uses for it.
    fn read_exact_at(&self, into: &mut [u8], address: u64) -> io::Result<()> {
        let last = address.saturating_add((into.len() as u64).saturating_sub(1));
        if self.inherited.contains(address / PAGE_SIZE * PAGE_SIZE)
            || self.inherited.contains(last / PAGE_SIZE * PAGE_SIZE)
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.mem.read_exact_at(into, address)
    }
}

/// Reads the eager pages of all threads from the template, by ascending address.
pub(in crate::capture) fn read_eager_pages(
    mem: &LocalMemory<'_>,
    threads: &[Thread],
    mm: &Mm,
    mappings: &[Mapping],
) -> Vec<EagerBytes> {
    let arguments = mm.arg_start / PAGE_SIZE..mm.env_end.div_ceil(PAGE_SIZE);
    let mut pages: BTreeSet<u64> = arguments.take(ARGUMENT_PAGES_MAX).map(|page| page * PAGE_SIZE).collect();
    for thread in threads {
        let mut touch = |address: u64, bytes: u64| {
            if address != 0 {
                let last = address.saturating_add(bytes.saturating_sub(1));
                pages.extend((address / PAGE_SIZE..=last / PAGE_SIZE).take(2).map(|page| page * PAGE_SIZE));
            }
        };
        touch(thread.clear_child_tid, 4);
        if let Some(rseq) = thread.rseq {
            touch(rseq.address, u64::from(rseq.bytes));
        }
        touch(thread.robust_list_head, thread.robust_list_bytes);
        for (entry, futex) in robust_list(mem, thread.robust_list_head) {
            touch(entry, 8);
            touch(futex, 4);
        }
    }
    let futex_pages: BTreeSet<u64> = threads
        .iter()
        .flat_map(|thread| futex_addresses(mem, FutexWords::of_registers(&thread.registers)))
        .map(|address| address / PAGE_SIZE * PAGE_SIZE)
        .collect();
    pages.extend(futex_pages.into_iter().take(FUTEX_PAGES_MAX));
    read_pages(mem, pages.into_iter().filter(|page| is_restorable(*page, mappings)), mappings)
}

/// Whether the restorer may write to the page before the child runs.
fn is_restorable(page: u64, mappings: &[Mapping]) -> bool {
    mapping_index(page, mappings).is_some_and(|index| {
        let mapping = &mappings[index];
        mapping.protection & WRITABLE_PROTECTION != 0
            && matches!(mapping.backing, Backing::Anonymous { extent: Some(_) })
    })
}

fn mapping_index(address: u64, mappings: &[Mapping]) -> Option<usize> {
    let index = mappings.partition_point(|mapping| mapping.end <= address);
    mappings.get(index).is_some_and(|mapping| mapping.start <= address).then_some(index)
}

/// Reads the pages. Adjacent pages of one mapping become one piece.
fn read_pages(mem: &LocalMemory<'_>, pages: impl Iterator<Item = u64>, mappings: &[Mapping]) -> Vec<EagerBytes> {
    let mut pieces: Vec<EagerBytes> = Vec::new();
    for address in pages {
        let mut bytes = vec![0; PAGE_SIZE as usize];
        if mem.read_exact_at(&mut bytes, address).is_err() {
            continue;
        }
        match pieces.last_mut() {
            Some(last)
                if last.address + last.bytes.len() as u64 == address
                    && mapping_index(last.address, mappings) == mapping_index(address, mappings) =>
            {
                last.bytes.append(&mut bytes);
            }
            _ => pieces.push(EagerBytes { address, bytes }),
        }
    }
    pieces
}

/// Returns the addresses that the kernel accesses for a futex call: its vector, and each word. The vector is in the program's
/// memory and may hold anything.
fn futex_addresses(mem: &LocalMemory<'_>, call: FutexWords) -> Vec<u64> {
    /// Bytes of `struct futex_waitv`, and the offset of the address.
    const ENTRY_BYTES: usize = 24;
    const ADDRESS_OFFSET: usize = 8;
    let mut addresses: Vec<u64> = call.words.into_iter().filter(|word| *word != 0).collect();
    let mut vector = vec![0; call.vector_entries as usize * ENTRY_BYTES];
    if call.vector_entries > 0 && mem.read_exact_at(&mut vector, call.vector).is_ok() {
        addresses.extend([call.vector, call.vector.saturating_add(vector.len() as u64 - 1)]);
        let word = |entry: &[u8]| u64::from_ne_bytes(std::array::from_fn(|index| entry[ADDRESS_OFFSET + index]));
        addresses.extend(vector.chunks_exact(ENTRY_BYTES).map(word));
    }
    addresses
}

/// Walks a list of robust futexes (`struct robust_list_head`): returns the address of each entry and of its futex. The list
/// is in the program's memory and may hold anything, so the walk ends at unreadable memory and at the kernel's limit.
fn robust_list(mem: &LocalMemory<'_>, head: u64) -> Vec<(u64, u64)> {
    /// Bit 0 of a pointer marks a futex with priority inheritance.
    const POINTER_MASK: u64 = !1;
    let word = |address: u64| {
        let mut bytes = [0; 8];
        mem.read_exact_at(&mut bytes, address).ok().map(|()| u64::from_ne_bytes(bytes))
    };
    let mut entries = Vec::new();
    if head == 0 {
        return entries;
    }
    let Some((first, futex_offset, pending)) =
        word(head).zip(word(head + 8)).zip(word(head + 16)).map(|((a, b), c)| (a, b, c))
    else {
        return entries;
    };
    let mut add = |entry: u64| entries.push((entry, entry.wrapping_add(futex_offset)));
    let mut entry = first & POINTER_MASK;
    for _ in 0..ROBUST_ENTRIES_MAX {
        if entry == head || entry == 0 {
            break;
        }
        add(entry);
        let Some(next) = word(entry) else { break };
        entry = next & POINTER_MASK;
    }
    if pending & POINTER_MASK != 0 {
        add(pending & POINTER_MASK);
    }
    entries
}
