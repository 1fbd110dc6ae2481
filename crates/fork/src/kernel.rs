//! Identifies the running kernel by its boot id and its vdso. The kernel maps the vdso into each process. Programs look
//! up its functions once and keep the addresses, so they depend on the kernel's build only through the vdso.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use farfork_sys::process;
use farfork_wire::descriptor::VDSO_BYTES_MAX;
use object::Object;

/// Build id of this kernel's vdso; empty if it cannot be read.
pub(crate) fn vdso_build_id() -> &'static [u8] {
    static BUILD_ID: OnceLock<Vec<u8>> = OnceLock::new();
    let read = || Some(object::File::parse(vdso_image()).ok()?.build_id().ok()??.to_vec());
    BUILD_ID.get_or_init(|| read().unwrap_or_default())
}

/// Boot id of this kernel; empty if it cannot be read.
pub fn boot_id() -> &'static str {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    let read = || process::read_line("/proc/sys/kernel/random/boot_id");
    BOOT_ID.get_or_init(|| read().unwrap_or_default())
}

/// The vdso of this kernel in whole pages; empty if it cannot be read.
pub(crate) fn vdso_image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| read_vdso().unwrap_or_default())
}

fn read_vdso() -> Option<Vec<u8>> {
    let own = process::read_maps(rustix::process::getpid().as_raw_nonzero().get()).ok()?;
    let vdso = own.iter().find(|entry| entry.path == b"[vdso]")?;
    let bytes = usize::try_from(vdso.end - vdso.start).ok().filter(|bytes| *bytes <= VDSO_BYTES_MAX)?;
    let mut image = vec![0; bytes];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut image, vdso.start).ok()?;
    Some(image)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vdso_of_this_kernel_has_a_build_id() {
        assert!(super::vdso_build_id().len() >= 8, "{:?}", super::vdso_build_id());
    }
}
