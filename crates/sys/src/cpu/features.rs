//! Instruction sets that user programs may use on this CPU, from CPUID (Intel SDM volume 2, CPUID; AMD APM volume 3,
//! appendix D).
//!
//! The table lists only instructions whose absence would kill a program. It omits instructions that only the kernel
//! uses or that only affect speed.

use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

/// Number of CPUID registers in the feature table.
pub const FEATURE_WORDS: usize = 9;

enum CpuidRegister {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// An output register of a CPUID leaf, with the bits that count. Most bits have the names of /proc/cpuinfo.
struct CpuidWord {
    leaf: u32,
    subleaf: u32,
    register: CpuidRegister,
    bits: &'static [(u32, &'static str)],
}

/// Seeds contain the values read by this table, in this order: words and bits may be added, but not moved.
const FEATURE_TABLE: [CpuidWord; FEATURE_WORDS] = [
    CpuidWord {
        leaf: 0x1,
        subleaf: 0,
        register: CpuidRegister::Ecx,
        bits: &[
            (0, "sse3"),
            (1, "pclmulqdq"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (22, "movbe"),
            (23, "popcnt"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
        ],
    },
    CpuidWord {
        leaf: 0x7,
        subleaf: 0,
        register: CpuidRegister::Ebx,
        bits: &[
            (0, "fsgsbase"),
            (3, "bmi1"),
            (5, "avx2"),
            (8, "bmi2"),
            (11, "rtm"),
            (16, "avx512f"),
            (17, "avx512dq"),
            (18, "rdseed"),
            (19, "adx"),
            (21, "avx512ifma"),
            (23, "clflushopt"),
            (24, "clwb"),
            (28, "avx512cd"),
            (29, "sha_ni"),
            (30, "avx512bw"),
            (31, "avx512vl"),
        ],
    },
    CpuidWord {
        leaf: 0x7,
        subleaf: 0,
        register: CpuidRegister::Ecx,
        bits: &[
            (1, "avx512vbmi"),
            (4, "ospke"),
            (5, "waitpkg"),
            (6, "avx512_vbmi2"),
            (8, "gfni"),
            (9, "vaes"),
            (10, "vpclmulqdq"),
            (11, "avx512_vnni"),
            (12, "avx512_bitalg"),
            (14, "avx512_vpopcntdq"),
            (22, "rdpid"),
            (23, "key_locker"),
            (27, "movdiri"),
            (28, "movdir64b"),
            (29, "enqcmd"),
        ],
    },
    CpuidWord {
        leaf: 0x7,
        subleaf: 0,
        register: CpuidRegister::Edx,
        bits: &[
            (8, "avx512_vp2intersect"),
            (14, "serialize"),
            (22, "amx_bf16"),
            (23, "avx512_fp16"),
            (24, "amx_tile"),
            (25, "amx_int8"),
        ],
    },
    CpuidWord {
        leaf: 0x7,
        subleaf: 1,
        register: CpuidRegister::Eax,
        bits: &[
            (0, "sha512"),
            (1, "sm3"),
            (2, "sm4"),
            (3, "raoint"),
            (4, "avx_vnni"),
            (5, "avx512_bf16"),
            (7, "cmpccxadd"),
            (21, "amx_fp16"),
            (23, "avx_ifma"),
        ],
    },
    CpuidWord {
        leaf: 0xd,
        subleaf: 1,
        register: CpuidRegister::Eax,
        bits: &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1")],
    },
    CpuidWord {
        leaf: 0x8000_0001,
        subleaf: 0,
        register: CpuidRegister::Ecx,
        bits: &[(0, "lahf_lm"), (5, "abm"), (6, "sse4a"), (11, "xop"), (16, "fma4"), (21, "tbm")],
    },
    CpuidWord { leaf: 0x8000_0001, subleaf: 0, register: CpuidRegister::Edx, bits: &[(27, "rdtscp")] },
    CpuidWord {
        leaf: 0x7,
        subleaf: 1,
        register: CpuidRegister::Edx,
        bits: &[
            (4, "avx_vnni_int8"),
            (5, "avx_ne_convert"),
            (8, "amx_complex"),
            (10, "avx_vnni_int16"),
            (19, "avx10"),
            (21, "apx_f"),
        ],
    },
];

/// Reads the features of this CPU, as CPUID reports them to user programs.
pub fn features() -> [u32; FEATURE_WORDS] {
    FEATURE_TABLE.map(|cpuid_word| {
        let mask = cpuid_word.bits.iter().fold(0, |mask, (bit, _)| mask | 1 << bit);
        cpuid_word.read() & mask
    })
}

/// Returns the names of the set bits. A bit without a name is named by its position.
pub fn feature_names(features: &[u32; FEATURE_WORDS]) -> Vec<String> {
    let bits = features
        .iter()
        .zip(&FEATURE_TABLE)
        .flat_map(|(found, cpuid_word)| (0..32).map(move |bit| (found >> bit & 1, cpuid_word, bit)));
    bits.filter(|(is_set, ..)| *is_set == 1).map(|(_, word, bit)| word.name(bit)).collect()
}

impl CpuidWord {
    fn read(&self) -> u32 {
        let highest = __cpuid(self.leaf & 0x8000_0000).eax;
        if self.leaf > highest {
            return 0;
        }
        let CpuidResult { eax, ebx, ecx, edx } = __cpuid_count(self.leaf, self.subleaf);
        match self.register {
            CpuidRegister::Eax => eax,
            CpuidRegister::Ebx => ebx,
            CpuidRegister::Ecx => ecx,
            CpuidRegister::Edx => edx,
        }
    }

    fn name(&self, bit: u32) -> String {
        let known = self.bits.iter().find(|(at, _)| *at == bit);
        known.map_or_else(
            || format!("CPUID {:#x}.{} bit {bit}", self.leaf, self.subleaf),
            |(_, name)| (*name).to_owned(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /proc/cpuinfo lists the features that the kernel detected. A feature that the kernel disabled is missing there.
    #[test]
    fn feature_names_equal_those_of_the_kernel() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> =
            text.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
        let found = feature_names(&features());
        let known = found.iter().filter(|name| flags.contains(&name.as_str())).count();
        // Some features have other names in /proc/cpuinfo: "sse3" is "pni".
        assert!(known * 10 >= found.len() * 8, "{found:?} are not in {flags:?}");
    }

    #[test]
    fn each_bit_has_one_name() {
        let mut names: Vec<&str> =
            FEATURE_TABLE.iter().flat_map(|cpuid_word| cpuid_word.bits.iter().map(|(_, name)| *name)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(
            FEATURE_TABLE.iter().all(|cpuid_word| cpuid_word.bits.is_sorted_by(|(one, _), (other, _)| one < other))
        );
    }
}
