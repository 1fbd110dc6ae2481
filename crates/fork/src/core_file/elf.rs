//! The headers of a core file (elf(5)), for x86-64. Pure.

use farfork_wire::PAGE_SIZE;

use super::segments::CoreSegment;

/// A core file has fewer segments than this number. With the program header for the notes, this number of segments
/// would need the reserved count 0xffff (PN_XNUM).
pub(super) const SEGMENTS_MAX: usize = 0xffff - 1;

const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

/// Returns the bytes before the contents of the segments, the file offset of each segment, and the length of the file.
pub(super) fn encode_headers(notes: &[u8], areas: &[CoreSegment]) -> (Vec<u8>, Vec<u64>, u64) {
    let headers = areas.len() as u64 + 1;
    let notes_at = HEADER_BYTES + headers * PROGRAM_HEADER_BYTES;
    let mut end = (notes_at + notes.len() as u64).next_multiple_of(PAGE_SIZE);
    let mut head = encode_file_header(headers as u16);
    append_program_header(&mut head, PT_NOTE, 0, [notes_at, 0, notes.len() as u64, 0, 4]);
    let mut offsets = Vec::with_capacity(areas.len());
    for core_segment in areas {
        let (bytes, file_bytes) = (core_segment.end - core_segment.start, core_segment.file_bytes());
        append_program_header(
            &mut head,
            PT_LOAD,
            segment_flags(core_segment),
            [end, core_segment.start, file_bytes, bytes, PAGE_SIZE],
        );
        offsets.push(end);
        end += file_bytes;
    }
    head.extend_from_slice(notes);
    (head, offsets, end)
}

fn encode_file_header(headers: u16) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [ET_CORE, EM_X86_64] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    for word in [0, HEADER_BYTES, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&0_u32.to_le_bytes());
    for half in [HEADER_BYTES as u16, PROGRAM_HEADER_BYTES as u16, headers, 0, 0, 0] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    debug_assert_eq!(bytes.len() as u64, HEADER_BYTES);
    bytes
}

/// Appends a program header. The words: offset in the file, address, bytes in the file, bytes in memory, alignment.
fn append_program_header(into: &mut Vec<u8>, kind: u32, flags: u32, [offset, address, file, memory, align]: [u64; 5]) {
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&flags.to_le_bytes());
    for word in [offset, address, 0, file, memory, align] {
        into.extend_from_slice(&word.to_le_bytes());
    }
}

/// Converts PROT_READ, PROT_WRITE and PROT_EXEC to PF_R, PF_W and PF_X.
fn segment_flags(core_segment: &CoreSegment) -> u32 {
    [(1, 4), (2, 2), (4, 1)].iter().filter(|(prot, _)| core_segment.protection & prot != 0).map(|(_, flag)| flag).sum()
}
