//! Copies of files and directories, and those of a plan.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use farfork_remote::ssh::CopyOutcome;

use crate::with_host;

pub(crate) fn files_are_copied_if_they_differ() {
    with_host(async |fixture, host| {
        let local = fixture.directory.path().join("local");
        let remote = fixture.directory.path().join("new directory/-remote 'file'\n");
        let text = remote.to_str().expect("UTF-8");
        let contents: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(&local, &contents).expect("it can be written");
        for expected in [CopyOutcome::Copied, CopyOutcome::Unchanged] {
            assert_eq!(host.copy_file(&local, text, 0o750).await.expect("it is copied"), expected);
            assert!(fs::read(&remote).expect("it exists") == contents, "the contents differ");
        }
        assert_eq!(host.copy_file(&local, text, 0o700).await.expect("it is copied"), CopyOutcome::Copied, "the mode");
        fs::write(&local, "new").expect("it can be written");
        assert_eq!(host.copy_file(&local, text, 0o700).await.expect("it is copied"), CopyOutcome::Copied);
        assert_eq!(fs::read_to_string(&remote).expect("it exists"), "new");
        let parent = remote.parent().expect("a directory");
        assert_eq!(fs::read_dir(parent).expect("it exists").count(), 1, "no partial file is left");
        assert_eq!(mode_of(parent), 0o755, "other users may have the file");
        host.remove_file(text).await.expect("it is removed");
        host.remove_file(text).await.expect("a missing file is no error");
        assert!(!remote.exists());
        let refused = host.copy_file(&local, "/proc/nowhere/file", 0o700).await.unwrap_err().to_string();
        assert!(refused.contains("host n1: cannot write /proc/nowhere/file"), "{refused}");
    });
}

pub(crate) fn directories_are_copied_if_they_differ() {
    with_host(async |fixture, host| {
        let local = fixture.directory.path().join("local directory");
        let remote = fixture.directory.path().join("above/-remote 'directory'\n");
        let text = remote.to_str().expect("UTF-8");
        fs::create_dir_all(local.join("inner")).expect("a directory");
        fs::write(local.join("inner/file"), "one").expect("it can be written");
        symlink("inner/file", local.join("link")).expect("a symbolic link");
        fs::set_permissions(local.join("inner"), Permissions::from_mode(0o705)).expect("its own directory");
        for expected in [CopyOutcome::Copied, CopyOutcome::Unchanged] {
            assert_eq!(host.copy_directory(&local, text).await.expect("it is copied"), expected);
            assert_eq!(fs::read_to_string(remote.join("link")).expect("a file of the copy"), "one");
            assert_eq!(mode_of(&remote.join("inner")), 0o705);
        }
        fs::write(remote.join("inner/other"), "of the host").expect("it can be written");
        assert_eq!(host.copy_directory(&local, text).await.expect("it is copied"), CopyOutcome::Copied);
        assert!(!remote.join("inner/other").exists(), "the copy has only the files of the original");
        fs::write(local.join("inner/file"), "two").expect("it can be written");
        assert_eq!(host.copy_directory(&local, text).await.expect("it is copied"), CopyOutcome::Copied);
        assert_eq!(fs::read_to_string(remote.join("link")).expect("a file of the copy"), "two");
        let parent = remote.parent().expect("a directory");
        assert_eq!(fs::read_dir(parent).expect("it exists").count(), 1, "no partial directory is left");
        assert_eq!(mode_of(parent), 0o755, "other users may have the directory");
        // More than a pipe has room for: tar must not wait for a reader.
        fs::write(local.join("large"), vec![1; 1 << 20]).expect("it can be written");
        let refused = host.copy_directory(&local, "/proc/nowhere/directory").await.unwrap_err().to_string();
        assert!(refused.contains("host n1: cannot write /proc/nowhere/directory"), "{refused}");
        let missing = host.copy_directory(&local.join("missing"), text).await.unwrap_err().to_string();
        assert!(missing.contains("local directory/missing"), "{missing}");
    });
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

pub(crate) fn only_own_copies_are_replaced_and_removed() {
    with_host(async |fixture, host| {
        let path = |name: &str| fixture.directory.path().join(name).to_str().expect("UTF-8").to_owned();
        let (directory, file) = (fixture.directory.path().join("local"), fixture.directory.path().join("local/file"));
        fs::create_dir(&directory).expect("a directory");
        for (local, remote) in [(&directory, path("above/of 'plan'")), (&file, path("above/file"))] {
            for contents in ["one", "two", "two"] {
                fs::write(&file, contents).expect("it can be written");
                host.sync(local, &remote, "a plan").await.expect("it is copied");
            }
            host.remove_synced(&remote).await.expect("it is removed");
            host.remove_synced(&remote).await.expect("a missing object is no error");
            let above = fixture.directory.path().join("above");
            assert_eq!(fs::read_dir(&above).expect("it exists").count(), 0, "no marker is left");
            // An object of others, where a marker of a removed copy may be left.
            host.sync(local, &remote, "a plan").await.expect("it is copied");
            fs::rename(&remote, path("own")).expect("it is moved");
            fs::create_dir_all(format!("{remote}/of others")).expect("a directory");
            for refused in [host.sync(local, &remote, "a plan").await, host.remove_synced(&remote).await] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains(&format!("host n1: {remote} was not made by")), "{refused}");
            }
            assert!(Path::new(&remote).join("of others").exists());
            host.require_script("empty it", r#"rm -rf -- "$@""#, &[&path("above"), &path("own")], b"")
                .await
                .expect("it runs");
        }
    });
}
