//! Who sits at the command line.

/// The name of the user this process runs as: not what the environment claims. A user without a
/// name, as in a container, is known by number.
pub(crate) fn name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    std::fs::read_to_string("/etc/passwd")
        .ok()
        .and_then(|passwd| find(&passwd, uid))
        .unwrap_or_else(|| format!("uid {uid}"))
}

fn find(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == uid && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nkim:x:1000:1000::/home/kim:/bin/sh\n";
        assert_eq!(find(passwd, 1000).as_deref(), Some("kim"));
        assert_eq!(find(passwd, 7), None);
    }
}
