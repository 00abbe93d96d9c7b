//! Who a process is to a pool: at most one living process may have an identity, and it finds its id again by it.
//!
//! # Model
//! What is sure is taken, in this order: an identity that was given; the pod's name; the host's name, the user and a slot
//! number. A slot that was given is added to any of them. What may be shared by several processes is no identity: then
//! nothing is guessed, and the refusal says what to give. Pure: what is known of the process is an argument.
//!
//! # What keeps two processes of one host apart
//! The state file is locked, and its default place is one for a host, user, pool and identity. So a name that was not
//! given goes only with that place; a file of the caller's own needs an identity or a slot of the caller's own too.
//!
//! # Not promised
//! Two hosts of one name, or two containers that share a name and not the file, are told apart by nobody here. The pool
//! sees two tokens of one identity: it lets the later take over, or refuses it, as the pool's `on_conflict` says.

use std::ffi::OsString;
use std::path::PathBuf;

/// How a process says who it is, and where it keeps its token.
#[derive(Clone, Debug, clap::Args)]
pub struct IdentityArgs {
    /// Who this process is: of no other living process [default: $POD_NAME, else host name, user and slot]
    #[arg(long, env = "TENURE_IDENTITY")]
    pub identity: Option<String>,
    /// Which of several processes of one host (or identity, or pod) this is [default for a host: 0]
    #[arg(long, value_name = "N", env = "TENURE_ID_SLOT")]
    pub slot: Option<u32>,
    /// The state file; holds the token, and is locked [default: one for pool and identity in $XDG_STATE_HOME/tenure,
    /// else /var/lib/tenure-id for root, else ~/.local/state/tenure]
    #[arg(long, value_name = "FILE", env = "TENURE_ID_STATE")]
    pub state: Option<PathBuf>,
}

/// What is known of the process and where it runs.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `$POD_NAME`.
    pub pod: Option<OsString>,
    /// `$POD_NAMESPACE`.
    pub namespace: Option<OsString>,
    /// In a pod of Kubernetes, whose host name may be the node's.
    pub in_kubernetes: bool,
    /// The host's name.
    pub host: String,
    /// The user's number.
    pub user: u32,
}

impl Surroundings {
    /// Of this process.
    pub fn here() -> Self {
        Self {
            pod: std::env::var_os("POD_NAME"),
            namespace: std::env::var_os("POD_NAMESPACE"),
            in_kubernetes: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            user: rustix::process::getuid().as_raw(),
        }
    }
}

/// Greatest identity, bytes.
const BYTES_MAX: usize = 256;

/// Names that systems and images come with: any number of hosts has them.
const NAMES_OF_MANY: [&str; 26] = [
    "localhost",
    "localhost4",
    "localhost6",
    "(none)",
    "none",
    "unknown",
    "host",
    "hostname",
    "server",
    "linux",
    "linuxkit",
    "docker-desktop",
    "container",
    "buildkitsandbox",
    "template",
    "debian",
    "ubuntu",
    "fedora",
    "centos",
    "rocky",
    "alpine",
    "archlinux",
    "nixos",
    "raspberrypi",
    "vagrant",
    "cloud",
];

const SAY: &str = "say who this process is with --identity or TENURE_IDENTITY, a name that no other living process has";

/// The identity, or what has to be given.
///
/// # Errors
/// One line for people.
pub fn identity(args: &IdentityArgs, here: &Surroundings) -> Result<String, String> {
    let with_slot = |name: String| args.slot.map_or_else(|| name.clone(), |slot| format!("{name}/{slot}"));
    let identity = if let Some(given) = &args.identity {
        if given.is_empty() {
            return Err(format!("the identity is empty: {SAY}"));
        }
        with_slot(given.clone())
    } else if let Some(pod) = &here.pod {
        with_slot(pod_name(pod, here.namespace.as_ref())?)
    } else {
        of_host(args, here)?
    };
    if identity.len() > BYTES_MAX {
        return Err(format!("the identity has {} bytes: at most {BYTES_MAX}", identity.len()));
    }
    Ok(identity)
}

fn pod_name(pod: &OsString, namespace: Option<&OsString>) -> Result<String, String> {
    let text = |name: &str, value: &OsString| match value.to_str() {
        Some("") => Err(format!("{name} is set and empty: {SAY}")),
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("{name} is no UTF-8: {SAY}")),
    };
    let pod = text("POD_NAME", pod)?;
    match namespace {
        Some(namespace) => Ok(format!("{}/{pod}", text("POD_NAMESPACE", namespace)?)),
        None => Ok(pod),
    }
}

fn of_host(args: &IdentityArgs, here: &Surroundings) -> Result<String, String> {
    if here.in_kubernetes {
        return Err(format!(
            "this is a pod without POD_NAME, and its host name may be the node's: set POD_NAME from metadata.name, or {SAY}"
        ));
    }
    let name = here.host.to_ascii_lowercase();
    let first = name.split('.').next().unwrap_or_default();
    if first.is_empty() || NAMES_OF_MANY.contains(&first) {
        return Err(format!("the host name {:?} is one that many hosts have: {SAY}", here.host));
    }
    if args.state.is_some() && args.slot.is_none() {
        return Err(format!(
            "--state keeps nobody else from being \"{name}\": give --slot N, a number of its own for each process of this host, or {SAY}"
        ));
    }
    let slot = args.slot.unwrap_or(0);
    Ok(match here.user {
        0 => format!("{name}/{slot}"),
        // Another user has another place for its state files: no lock would keep the two apart.
        user => format!("{name}/uid{user}/{slot}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(identity: Option<&str>, slot: Option<u32>, state: Option<&str>) -> IdentityArgs {
        IdentityArgs { identity: identity.map(str::to_owned), slot, state: state.map(PathBuf::from) }
    }

    fn host(name: &str, user: u32) -> Surroundings {
        Surroundings { host: name.to_owned(), user, ..Surroundings::default() }
    }

    fn pod(name: &str, namespace: Option<&str>) -> Surroundings {
        let namespace = namespace.map(OsString::from);
        Surroundings { pod: Some(name.into()), namespace, in_kubernetes: true, ..host("web-0", 0) }
    }

    #[test]
    fn what_is_sure_is_taken_in_this_order() {
        let rows = [
            (args(Some("me"), None, None), pod("web-0", None), "me"),
            (args(Some("me"), Some(2), None), pod("web-0", None), "me/2"),
            (args(None, None, None), pod("web-0", None), "web-0"),
            (args(None, None, None), pod("web-0", Some("prod")), "prod/web-0"),
            (args(None, Some(1), Some("f")), pod("web-0", Some("prod")), "prod/web-0/1"),
            (args(None, None, None), host("Web1.example.com", 0), "web1.example.com/0"),
            (args(None, None, None), host("web1", 1000), "web1/uid1000/0"),
            (args(None, Some(3), None), host("web1", 1000), "web1/uid1000/3"),
            (args(None, Some(3), Some("f")), host("web1", 0), "web1/3"),
        ];
        for (args, here, wanted) in rows {
            assert_eq!(identity(&args, &here).unwrap(), wanted, "{args:?} {here:?}");
        }
    }

    #[test]
    fn what_may_be_shared_is_refused_with_what_to_give() {
        let rows = [
            (args(Some(""), None, None), host("web1", 0), "is empty"),
            (args(None, None, None), pod("", None), "POD_NAME is set and empty"),
            (args(None, None, None), pod("web-0", Some("")), "POD_NAMESPACE is set and empty"),
            (args(None, None, None), Surroundings { in_kubernetes: true, ..host("web-0", 0) }, "metadata.name"),
            (args(None, Some(1), None), Surroundings { in_kubernetes: true, ..host("web-0", 0) }, "metadata.name"),
            (args(None, None, None), host("", 0), "many hosts"),
            (args(None, Some(0), None), host("localhost", 0), "many hosts"),
            (args(None, None, None), host("LOCALHOST.localdomain", 0), "many hosts"),
            (args(None, None, None), host("ubuntu", 0), "many hosts"),
            (args(None, None, Some("f")), host("web1", 0), "--slot N"),
            (args(Some(&"x".repeat(257)), None, None), host("web1", 0), "at most 256"),
        ];
        for (args, here, wanted) in rows {
            let refusal = identity(&args, &here).unwrap_err();
            assert!(refusal.contains(wanted), "{args:?} {here:?}: {refusal}");
            let says_what = refusal.contains("--identity") || wanted.starts_with("at most");
            assert!(says_what, "{refusal}");
        }
    }
}
