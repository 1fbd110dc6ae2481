//! A bridge from the parent's vdso to this kernel's vdso: each old function becomes a jump to the new one. A function
//! that this kernel's vdso lacks makes a system call, or fails as on a machine without it. Later symbol lookups of the
//! program find the old vdso, so these calls use the bridge, too. `kernel_compatibility` decides whether a child needs
//! a bridge.

use std::ops::Range;

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Descriptor, Mapping, SpecialMapping};
use object::{Object, ObjectSymbol, SymbolKind};

use super::RestoreError;
use super::plan_layout::PlanSpecialMapping;
use super::region;
use super::signal_frame::RIP_INDEX;
use super::stub_map::StubMap;

/// `jmp *0(%rip)`, followed by the target's address. It changes no register.
const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
const JUMP_BYTES: usize = JUMP.len() + 8;

/// Functions that a system call with the same arguments can replace, each with the number of the call.
const SYSCALL_FALLBACKS: [(&str, u32); 6] = [
    ("clock_gettime", 228),
    ("gettimeofday", 96),
    ("time", 201),
    ("getcpu", 309),
    ("clock_getres", 229),
    ("getrandom", 318),
];

/// Prefix of all function names. Some functions have another name without it.
const SYMBOL_PREFIX: &str = "__vdso_";

//  the parent's place    its vdso, as it was: headers, names, and for each function a jump ──┐
//                        its data pages: nothing that could be read                           │
//  a free place          this kernel's data pages and vdso, as the kernel made them  ◀────────┘
/// The replacement code for each function of the parent's vdso.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VdsoBridge {
    image: Vec<u8>,
    /// Offsets of functions in the old vdso, ascending, and in this kernel's vdso. `None` if this kernel lacks the
    /// function: then the image has substitute code.
    jumps: Vec<(usize, Option<u64>)>,
}

/// A bridge that is placed in an address space.
#[derive(Debug)]
pub(super) struct PlacedBridge {
    /// Source and destination of the kernel's own mappings.
    pub(super) special_mappings: Vec<PlanSpecialMapping>,
    /// Contents of the parent's vdso mapping.
    pub(super) image: Vec<u8>,
}

/// A function of a vdso.
struct VdsoFunction<'a> {
    name: &'a str,
    offset: u64,
}

impl VdsoBridge {
    /// Builds a bridge from the vdso image `old`, which is not trusted, to `new`. `None` if an image is not an ELF
    /// library, or a function of `old` is too short for a jump.
    pub(super) fn from_images(old: &[u8], new: &[u8]) -> Option<Self> {
        let (mut image, targets) = (old.to_vec(), parse_functions(new)?);
        let mut known = parse_functions(old)?;
        known.sort_by_key(|function| function.offset);
        known.dedup_by_key(|function| function.offset);
        let ends = known.iter().skip(1).map(|next| next.offset).chain([old.len() as u64]);
        let mut jumps = Vec::with_capacity(known.len());
        for (function, end) in known.iter().zip(ends) {
            let offset = usize::try_from(function.offset).ok()?;
            let room = image.get_mut(offset..usize::try_from(end).ok()?)?.first_chunk_mut::<JUMP_BYTES>()?;
            let target = targets.iter().find(|target| target.name == function.name).map(|target| target.offset);
            if target.is_none() {
                *room = fallback_code(function.name);
            }
            jumps.push((offset, target));
        }
        (!jumps.is_empty()).then_some(Self { image, jumps })
    }

    /// Chooses an address for this kernel's mappings, which keep their distances, and writes jumps to this address into
    /// the old vdso's image. Fails if a thread is in the old vdso's code.
    pub(super) fn place(&self, descriptor: &Descriptor, stub: &StubMap) -> Result<PlacedBridge, RestoreError> {
        let here: Vec<(u64, u64)> = SpecialMapping::ALL.iter().filter_map(|kind| stub.special_mapping(*kind)).collect();
        let vdso = stub.special_mapping(SpecialMapping::Vdso).ok_or(RestoreError::NoVdso)?;
        let from = here.iter().map(|range| range.0).min().unwrap_or(vdso.0);
        let bytes = here.iter().map(|range| range.1).max().unwrap_or(vdso.1) - from;
        let occupied: Vec<(u64, u64)> =
            descriptor.mappings.iter().map(|one| (one.start, one.end)).chain(stub.ranges()).collect();
        let to = region::find_highest_free_range(bytes, &occupied).ok_or(RestoreError::NoFreeRange { bytes })?;
        let special =
            |(start, end): (u64, u64)| PlanSpecialMapping { from: start, to: to + (start - from), bytes: end - start };
        let mut image = self.image.clone();
        for (offset, target) in &self.jumps {
            let Some(target) = target else { continue };
            let address = to + (vdso.0 - from) + target;
            image[*offset..offset + JUMP.len()].copy_from_slice(&JUMP);
            image[offset + JUMP.len()..offset + JUMP_BYTES].copy_from_slice(&address.to_ne_bytes());
        }
        check_threads_outside_vdso(descriptor)?;
        Ok(PlacedBridge { special_mappings: here.into_iter().map(special).collect(), image })
    }

    /// Whether the image has the size of the parent's vdso mapping.
    pub(super) fn fits_in(&self, mapping: &Mapping) -> bool {
        let bytes = self.image.len() as u64;
        mapping.end - mapping.start == bytes && bytes.is_multiple_of(PAGE_SIZE)
    }
}

/// Returns the address range of the parent's vdso; `None` for a process without a vdso.
pub(super) fn parent_vdso_range(descriptor: &Descriptor) -> Option<Range<u64>> {
    use farfork_wire::descriptor::Backing::Special;
    let is_vdso = |one: &&Mapping| matches!(one.backing, Special(SpecialMapping::Vdso));
    descriptor.mappings.iter().find(is_vdso).map(|one| one.start..one.end)
}

/// Fails if a thread is in the old vdso's code: this code is replaced, and its data pages no longer exist.
fn check_threads_outside_vdso(descriptor: &Descriptor) -> Result<(), RestoreError> {
    let Some(place) = parent_vdso_range(descriptor) else { return Ok(()) };
    let inside = descriptor.threads.iter().find(|thread| place.contains(&thread.registers[RIP_INDEX]));
    inside.map_or(Ok(()), |thread| Err(RestoreError::ThreadInVdso { tid: thread.tid }))
}

/// Returns the substitute for a missing function: `mov $NUMBER, %eax; syscall; ret`, or `mov $-ENOSYS, %rax; ret` if no
/// system call can replace it.
fn fallback_code(name: &str) -> [u8; JUMP_BYTES] {
    const BREAKPOINT: u8 = 0xcc;
    let mut code = [BREAKPOINT; JUMP_BYTES];
    match SYSCALL_FALLBACKS.iter().find(|(call, _)| *call == name) {
        Some((_, number)) => {
            code[0] = 0xb8;
            code[1..5].copy_from_slice(&number.to_le_bytes());
            code[5..8].copy_from_slice(&[0x0f, 0x05, 0xc3]);
        }
        None => code[..8].copy_from_slice(&[0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3]),
    }
    code
}

/// Returns the functions that a vdso exports, with names without the prefix.
fn parse_functions(image: &[u8]) -> Option<Vec<VdsoFunction<'_>>> {
    let library = object::File::parse(image).ok()?;
    let mut found = Vec::new();
    for symbol in library.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
    {
        let name = symbol.name_bytes().ok().and_then(|name| str::from_utf8(name).ok())?;
        // `name` must borrow from the image, not from `library`.
        found.push(VdsoFunction { name: name.strip_prefix(SYMBOL_PREFIX).unwrap_or(name), offset: symbol.address() });
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::vdso_image;

    #[test]
    fn each_vdso_function_of_this_kernel_jumps_to_itself() {
        let bridge = VdsoBridge::from_images(vdso_image(), vdso_image()).unwrap();
        assert!(bridge.jumps.len() >= 4, "{:?}", bridge.jumps);
        assert!(bridge.jumps.iter().all(|(offset, target)| *target == Some(*offset as u64)));
        assert_eq!(bridge.image, vdso_image());
    }

    /// Renames a function, with and without the prefix. Returns whether the vdso has it.
    fn rename_function(image: &mut [u8], function: &str) -> bool {
        let name = format!("{function}\0");
        let is_whole = |at: usize| image[at - 1] == 0 || image[..at].ends_with(SYMBOL_PREFIX.as_bytes());
        let parts = image.windows(name.len()).enumerate().filter(|(_, part)| *part == name.as_bytes());
        let whole: Vec<usize> = parts.map(|(at, _)| at).filter(|at| is_whole(*at)).collect();
        whole.iter().for_each(|at| image[*at] = b'X');
        !whole.is_empty()
    }

    /// Each kernel has some of the functions: one without `getcpu` has `clock_gettime`.
    #[test]
    fn a_missing_vdso_function_becomes_a_system_call() {
        let mut lesser_images = 0;
        for (function, number) in SYSCALL_FALLBACKS {
            let mut lesser = vdso_image().to_vec();
            if !rename_function(&mut lesser, function) {
                continue;
            }
            lesser_images += 1;
            let bridge = VdsoBridge::from_images(vdso_image(), &lesser).unwrap();
            let missing: Vec<usize> =
                bridge.jumps.iter().filter(|(_, target)| target.is_none()).map(|(at, _)| *at).collect();
            let [low, high, ..] = number.to_le_bytes();
            assert_eq!(missing.len(), 1, "{function}");
            assert_eq!(bridge.image[missing[0]..][..8], [0xb8, low, high, 0, 0, 0x0f, 0x05, 0xc3], "{function}");
        }
        assert!(lesser_images >= 3, "{lesser_images}");
        assert_eq!(fallback_code("sgx_enter_enclave")[..3], [0x48, 0xc7, 0xc0]);
    }

    #[test]
    fn a_damaged_vdso_gives_no_bridge() {
        assert_eq!(VdsoBridge::from_images(&[], vdso_image()), None);
        let (whole, cut) = (vdso_image(), &vdso_image()[..4096]);
        for byte in 0..whole.len().min(1024) {
            let mut damaged = whole.to_vec();
            damaged[byte] ^= 0xff;
            let _ = VdsoBridge::from_images(&damaged, whole);
        }
        let _ = VdsoBridge::from_images(cut, whole);
    }
}
