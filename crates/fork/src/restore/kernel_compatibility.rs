//! Decides whether this node's kernel can continue a program that began on another kernel, before anything is started.
//! A child keeps the addresses of vdso functions, and gets this kernel's vdso at the address of the old one. Another
//! kernel build may have vdso functions at other addresses, even with the same release and the same vdso size. Then the
//! child needs a bridge (`vdso`).

use farfork_wire::descriptor::Origin;

use super::vdso::VdsoBridge;
use super::{LocalNode, RestoreError};

/// Builds the bridge from the parent's vdso to the vdso of this node's kernel; `None` if both kernels are the same
/// build.
pub(super) fn build_bridge_if_needed(origin: &Origin, node: &LocalNode) -> Result<Option<VdsoBridge>, RestoreError> {
    let is_same_build = !origin.vdso_build_id.is_empty() && origin.vdso_build_id == node.vdso_build_id;
    if (node.is_origin_machine(origin) || is_same_build) && !node.forces_vdso_bridge {
        return Ok(None);
    }
    let (wanted, found) = (origin.kernel_release.clone(), node.kernel_release.clone());
    let bridge = VdsoBridge::from_images(&origin.vdso_image, crate::kernel::vdso_image());
    bridge.map(Some).ok_or(RestoreError::KernelMismatch { wanted, found })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the origin of a seed of another machine with this kernel, and this node.
    fn of_another_machine() -> (Origin, LocalNode) {
        let node = LocalNode::detect().unwrap();
        let origin = Origin {
            node: "n1".parse().unwrap(),
            root: None,
            kernel_release: node.kernel_release.clone(),
            parent_pid: 1,
            parent_start_ticks: 1,
            boot_id: "another".to_owned(),
            vdso_build_id: node.vdso_build_id.clone(),
            vdso_image: crate::kernel::vdso_image().to_vec(),
            xcr0: 0,
            xstate_bytes: 0,
            cpu_features: Default::default(),
            monotonic_ns: 0,
            boottime_ns: 0,
        };
        (origin, node)
    }

    #[test]
    fn the_same_kernel_build_needs_no_bridge() {
        let (origin, mut node) = of_another_machine();
        assert_eq!(build_bridge_if_needed(&origin, &node).unwrap(), None);
        node.forces_vdso_bridge = true;
        assert!(build_bridge_if_needed(&origin, &node).unwrap().is_some());
    }

    #[test]
    fn another_kernel_build_gets_a_vdso_bridge() {
        let (mut origin, node) = of_another_machine();
        origin.vdso_build_id[0] ^= 1;
        assert!(build_bridge_if_needed(&origin, &node).unwrap().is_some());
    }

    #[test]
    fn an_unreadable_vdso_of_another_build_is_refused_with_both_releases() {
        let (mut origin, node) = of_another_machine();
        origin.kernel_release = "6.1.0-other".to_owned();
        origin.vdso_build_id[0] ^= 1;
        origin.vdso_image.truncate(1000);
        let said = build_bridge_if_needed(&origin, &node).unwrap_err().to_string();
        assert!(said.contains("6.1.0-other") && said.contains(&node.kernel_release), "{said}");
    }

    #[test]
    fn unreadable_vdsos_match_only_on_the_same_boot() {
        let (mut origin, mut node) = of_another_machine();
        (origin.vdso_build_id, node.vdso_build_id, origin.vdso_image) = (Vec::new(), Vec::new(), Vec::new());
        assert!(build_bridge_if_needed(&origin, &node).is_err());
        origin.boot_id = node.boot_id.clone();
        assert_eq!(build_bridge_if_needed(&origin, &node).unwrap(), None);
    }
}
