//! File systems on which SQLite's locks and shared memory cannot be trusted.

use std::{io, path::Path};

/// Names the network file system that `folder` is on, if it is on one.
#[cfg(target_os = "linux")]
pub(crate) fn network(folder: &Path) -> io::Result<Option<&'static str>> {
    let kind = rustix::fs::statfs(folder)?.f_type;
    // Magic numbers are 32 bits wide, whatever the field is on this machine.
    Ok(match kind as u32 {
        FUSE => fuse(&std::fs::read_to_string("/proc/self/mountinfo")?, &folder.canonicalize()?),
        kind => name(kind),
    })
}

/// Elsewhere nothing is known, so nothing is refused.
#[cfg(not(target_os = "linux"))]
pub(crate) fn network(_folder: &Path) -> io::Result<Option<&'static str>> {
    Ok(None)
}

#[cfg(target_os = "linux")]
const FUSE: u32 = 0x6573_5546;

/// By the numbers of statfs(2).
#[cfg(target_os = "linux")]
fn name(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0x6969 => "NFS",
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => "SMB/CIFS",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x00C3_6400 => "CephFS",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7375_7245 => "Coda",
        0x564C => "NCP",
        0x0102_1997 => "9p",
        _ => return None,
    })
}

/// FUSE is one number for many: local disks (`fuseblk`) and a virtual machine's folders (`virtiofs`)
/// are fine, the rest reaches over a network as a rule.
#[cfg(target_os = "linux")]
fn fuse(mounts: &str, folder: &Path) -> Option<&'static str> {
    let (_, kind) = mounts
        .lines()
        .filter_map(|line| {
            let (mount, source) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            folder
                .starts_with(&point)
                .then(|| (point.len(), source.split(' ').next().unwrap_or_default()))
        })
        // Of two mounts at one place the later one is seen.
        .max_by_key(|(length, _)| *length)?;
    (!matches!(kind, "fuseblk" | "virtiofs")).then_some("FUSE (sshfs or the like)")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_with_a_network_behind_them_are_named() {
        assert_eq!(name(0x6969), Some("NFS"));
        assert_eq!(name(0xFF53_4D42), Some("SMB/CIFS"));
        assert_eq!(name(0xEF53), None, "ext4");
        assert_eq!(name(0x0102_1994), None, "tmpfs");
    }

    #[test]
    fn fuse_is_judged_by_what_is_mounted() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            36 21 0:32 / /mnt/far rw - fuse.sshfs hub@far:/ rw\n\
            37 21 8:17 / /mnt/usb\\040disk rw - fuseblk /dev/sdb1 rw\n";
        let kind = |folder: &str| fuse(mounts, Path::new(folder));
        assert!(kind("/mnt/far/hub").is_some());
        assert!(kind("/mnt/usb disk/hub").is_none());
    }
}
