//! Names that follow from the driver's.

/// On an attachment: what the driver calls the node, for when the node is gone.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// The name with everything replaced that a finalizer or a Lease may not contain.
pub fn sanitise(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let mut sanitised: String = name.chars().map(keep).collect();
    if sanitised.ends_with('-') {
        sanitised.push('X');
    }
    sanitised
}

/// The finalizer, the same on attachments and volumes.
pub fn finalizer(driver: &str) -> String {
    format!("external-attacher/{}", sanitise(driver))
}

/// The Lease by which one attacher of a driver leads.
pub fn lease_name(driver: &str) -> String {
    sanitise(&format!("external-attacher-leader-{driver}"))
}
