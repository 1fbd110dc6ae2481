//! Images of real seeds: a read returns the template's contents, and no damage to the file leads to a wrong byte.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farfork_fabric::{Address, Region};
use farfork_fork::image::{Image, ImageError, ImageProgress};
use farfork_fork::resume::{LayerReader, LocalSeeds};
use farfork_fork::seed::Seed;
use farfork_wire::descriptor::ExtentId;
use farfork_wire::{NodeName, PAGE_SIZE, Token};
use tempfile::TempDir;

use crate::harness::Parent;

/// A seed with one resource of each kind, and its image.
struct ImageScene {
    directory: TempDir,
    _files: TempDir,
    _parent: Parent,
    seed: Seed,
}

fn scene() -> ImageScene {
    let (directory, files) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let parent = Parent::start("resources", &[files.path().to_str().unwrap()]);
    let captured = parent.capture().unwrap();
    let seed = Seed::new("here.s00f3a96c5d217e84".parse().unwrap(), Token::from_bytes([3; 16]), captured).unwrap();
    ImageScene { directory, _files: files, _parent: parent, seed }
}

/// Returns a reader that knows no other seeds: the seed of these tests inherits no pages.
fn nobody_else() -> LayerReader {
    let (node, address) = (NodeName::new("here").unwrap(), Address::Tcp(([127, 0, 0, 1], 1).into()));
    let own = LocalSeeds { node, address, table: Arc::default() };
    LayerReader { local: own, connections: Arc::default() }
}

impl ImageScene {
    fn path(&self) -> PathBuf {
        self.directory.path().join("seed.image")
    }

    fn seal(&self) -> Image {
        self.seed.seal(&nobody_else(), b"about".to_vec(), &self.path(), &ImageProgress::default()).unwrap()
    }

    /// The id and the size in bytes of each extent.
    fn extents(&self) -> impl Iterator<Item = (ExtentId, u64)> {
        let extents = self.seed.descriptor().extents.iter().enumerate();
        extents.map(|(index, extent)| (ExtentId(index as u32), extent.bytes))
    }

    /// The template's contents of an extent; zeroes for pages that the descriptor does not list.
    fn expected(&self, extent: ExtentId) -> Vec<u8> {
        let known = &self.seed.descriptor().extents[extent.0 as usize];
        let mut bytes = vec![0; known.bytes as usize];
        for run in &known.populated {
            let range = (run.first * PAGE_SIZE) as usize..((run.first + run.count) * PAGE_SIZE) as usize;
            self.seed.read(extent, run.first * PAGE_SIZE, &mut bytes[range]).unwrap();
        }
        bytes
    }

    fn damage(&self, at: u64) {
        let file = File::options().read(true).write(true).open(self.path()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }
}

fn names(error: &ImageError, path: &Path) {
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn an_image_has_the_memory_of_its_template() {
    let scene = scene();
    let image = scene.seal();
    assert_eq!((image.head().daemon_state.as_slice(), image.descriptor()), (&b"about"[..], &**scene.seed.descriptor()));
    assert_eq!(fs::metadata(scene.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(scene.directory.path()).unwrap().count(), 1, "nothing but the image");
    let sealed = Seed::from_image(Image::open(&scene.path()).unwrap());
    assert_eq!(sealed.key(), scene.seed.key());
    assert_eq!(sealed.template_pid(), None);
    let mut data_bytes = 0;
    for (extent, bytes) in scene.extents() {
        let (expected, mut found) = (scene.expected(extent), vec![1; bytes as usize]);
        sealed.read(extent, 0, &mut found).unwrap();
        assert!(found == expected, "extent {}", extent.0);
        data_bytes += expected.iter().filter(|byte| **byte != 0).count();
        // A read that begins and ends within pages.
        let (from, to) = (bytes as usize / 3, bytes as usize - bytes as usize / 5);
        sealed.read(extent, from as u64, &mut found[from..to]).unwrap();
        assert!(found == expected, "extent {} in part", extent.0);
    }
    assert!(data_bytes > 10_000, "the parent has data: {data_bytes}");
    let mut descriptor = vec![0; sealed.extent_bytes(ExtentId::DESCRIPTOR).unwrap() as usize];
    sealed.read(ExtentId::DESCRIPTOR, 0, &mut descriptor).unwrap();
    assert_eq!(descriptor, farfork_wire::descriptor::encode(scene.seed.descriptor()).unwrap());
}

#[test]
fn a_truncated_image_is_refused_by_name() {
    let scene = scene();
    let bytes = fs::metadata(scene.seal().path()).unwrap().len();
    for length in [bytes - 1, bytes - PAGE_SIZE, bytes / 2, 4096, 100, 24, 10, 0] {
        File::options().write(true).open(scene.path()).unwrap().set_len(length).unwrap();
        names(&Image::open(&scene.path()).unwrap_err(), &scene.path());
    }
    fs::write(scene.path(), vec![7; bytes as usize]).unwrap();
    names(&Image::open(&scene.path()).unwrap_err(), &scene.path());
}

/// Damages the image at many offsets in turn. Either it is refused, or a read of the damaged part fails and all others are
/// right.
#[test]
fn a_damaged_image_never_gives_a_wrong_byte() {
    let scene = scene();
    let bytes = fs::metadata(scene.seal().path()).unwrap().len();
    let expected: Vec<(ExtentId, Vec<u8>)> =
        scene.extents().map(|(extent, _)| (extent, scene.expected(extent))).collect();
    let (mut refused, mut unreadable) = (0, 0);
    let offsets = (0..40).map(|index| index * 7).chain((1..40).map(|index| index * bytes / 40)).chain([bytes - 1]);
    for at in offsets {
        scene.damage(at);
        match Image::open(&scene.path()) {
            Err(error) => {
                names(&error, &scene.path());
                refused += 1;
            }
            Ok(image) => {
                for (extent, pages) in &expected {
                    for (page, expected) in pages.chunks(PAGE_SIZE as usize).enumerate() {
                        let mut found = vec![0; expected.len()];
                        match image.read(*extent, page as u64 * PAGE_SIZE, &mut found) {
                            Ok(()) => assert!(found == expected, "extent {}, page {page}, damaged at {at}", extent.0),
                            Err(_) => unreadable += 1,
                        }
                    }
                }
            }
        }
        scene.damage(at);
    }
    assert!(refused >= 40 && unreadable > 10, "{refused} refused, {unreadable} pages unreadable");
    Image::open(&scene.path()).expect("each damage was undone");
}

#[test]
fn a_cancelled_image_leaves_nothing() {
    let scene = scene();
    let progress = ImageProgress::default();
    progress.cancel();
    let cancelled = scene.seed.seal(&nobody_else(), Vec::new(), &scene.path(), &progress).unwrap_err();
    assert!(matches!(cancelled, ImageError::Cancelled { .. }), "{cancelled}");
    assert_eq!(fs::read_dir(scene.directory.path()).unwrap().count(), 0);
}

/// The template ends before its image is complete.
#[test]
fn an_image_of_unreadable_memory_leaves_nothing() {
    let scene = scene();
    let template = farfork_sys::pidfd::open(scene.seed.template_pid().unwrap()).unwrap();
    farfork_sys::pidfd::send_signal(&template, 9).unwrap();
    assert!(farfork_sys::pidfd::wait_exit(&template, crate::harness::WAIT_LIMIT).unwrap());
    let failed = scene.seed.seal(&nobody_else(), Vec::new(), &scene.path(), &ImageProgress::default()).unwrap_err();
    assert!(matches!(failed, ImageError::ReadMemory { .. }), "{failed}");
    assert_eq!(fs::read_dir(scene.directory.path()).unwrap().count(), 0);
}
