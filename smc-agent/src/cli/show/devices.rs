//! Text of `show devices`.

use std::fmt::Write as _;

use super::escape;
use super::table::Table;
use crate::netlink::smc::{IsmDevice, RdmaDevice, RdmaPort};
use crate::show::Devices;

pub(super) fn text(devices: &Devices, _raw: bool) -> String {
    let mut text = String::new();
    if !devices.smcr.is_empty() {
        let mut table =
            Table::new(&["Net-Dev", "IB-Dev", ">IB-P", "IB-State", "Type", "Crit", ">#Links", "PNET-ID"]);
        for device in &devices.smcr {
            for port in &device.ports {
                table.row(rdma_row(devices, device, port));
            }
        }
        let _ = write!(text, "SMC-R\n{table}");
    }
    if !devices.smcd.is_empty() {
        let mut table = Table::new(&["FID", "Type", "PCI-ID", "PCHID", "Crit", ">#LGs", "PNET-ID"]);
        for device in &devices.smcd {
            table.row(ism_row(device));
        }
        let _ = write!(text, "SMC-D\n{table}");
    }
    if !devices.dibs.is_empty() {
        let mut table = Table::new(&["Dibs-Dev", "GID", "Fabric"]);
        for device in &devices.dibs {
            let shown = |value: &Option<String>| value.as_deref().map_or_else(String::new, escape);
            table.row(vec![escape(&device.name), shown(&device.gid), shown(&device.fabric_id)]);
        }
        let _ = write!(text, "dibs (SMC itself does not list the loopback device)\n{table}");
    }
    if text.is_empty() { "no devices that SMC could use\n".to_owned() } else { text }
}

fn rdma_row(devices: &Devices, device: &RdmaDevice, port: &RdmaPort) -> Vec<String> {
    let interface = match port.interface_index {
        0 => String::new(),
        index => devices.interface(index).map_or_else(|| format!("if{index}"), escape),
    };
    vec![
        interface,
        escape(&device.name),
        port.number.to_string(),
        if port.active { "ACTIVE" } else { "INACTIVE" }.to_owned(),
        device.pci.as_ref().map_or_else(|| "n/a".to_owned(), |pci| kind(pci.device)),
        yes_no(device.critical),
        port.links.to_string(),
        pnet(port.pnet_id.as_ref(), port.pnet_by_user),
    ]
}

fn ism_row(device: &IsmDevice) -> Vec<String> {
    vec![
        format!("{:04x}", device.pci.fid),
        kind(device.pci.device),
        escape(&device.pci.id),
        format!("{:04x}", device.pci.chid),
        yes_no(device.critical),
        device.link_groups.to_string(),
        pnet(device.pnet_id.as_ref(), device.pnet_by_user),
    ]
}

/// The names that smc-tools give to devices.
fn kind(device: u16) -> String {
    match device {
        0x1004 => "RoCE_Express".to_owned(),
        0x1016 => "RoCE_Express2".to_owned(),
        0x101e => "RoCE_Express3".to_owned(),
        0x04ed => "ISM".to_owned(),
        other => format!("0x{other:04x}"),
    }
}

fn yes_no(value: bool) -> String {
    if value { "Yes" } else { "No" }.to_owned()
}

/// Marked with an asterisk where a user set it, as smc-tools do.
fn pnet(id: Option<&String>, by_user: bool) -> String {
    id.map_or_else(String::new, |id| format!("{}{}", if by_user { "*" } else { "" }, escape(id)))
}
