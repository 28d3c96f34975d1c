/** What the operations of each tag are about, for the OpenAPI document. */
export const TAGS: Readonly<Record<string, string>> = {
  'API keys': 'The keys with which requests act on the organization.',
  Events: 'What happened in the organization, for audits.',
  Members: 'The people of the organization.',
  Metrics: 'What sandboxes use: processor time, memory, disk and network.',
  Operation: 'For operators: health, metrics and this document.',
  Organization: 'The organization that the API key belongs to.',
  Previews: 'Ports of sandboxes that are open to a link or to everybody.',
  Quotas: 'The limits of the organization, and how much of each it uses.',
  'SSH keys': 'Public keys that open SSH connections to sandboxes.',
  'Registry credentials': 'Names and passwords for image registries.',
  Sandboxes: 'Sandboxes by id: their lifecycle, commands and logs.',
  'Sandboxes by name': 'The operations on sandboxes that public clients call by name.',
  Snapshots: 'Copies of the disks of sandboxes, from which sandboxes can be created.',
  Usage: 'Metered usage and its price.',
  'Volume files': 'The files of volumes, without a sandbox.',
  Volumes: 'Files that outlive sandboxes.',
}
