import { PORT_MAX } from '../requests/request-bounds.ts'

/** Describes a valid host of a registry, for refusals. */
export const REGISTRY_HOST_RULE =
  'the host of a registry in lower case, with its port when it has one: registry.example or registry.example:5000, without a scheme or path'

// Host names of RFC 1123, 2.1, as the OCI distribution specification ("Pulling manifests") uses them.
const HOST =
  /^(?:\[[0-9a-f:]+\]|[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*)(?::(?<port>[0-9]{1,5}))?$/

/** A host name has at most this many characters (RFC 1035, 2.3.4). */
const HOST_MAX_CHARS = 255

/** Whether a text is a registry's host in its canonical spelling. */
export function isRegistryHost(text: string): boolean {
  const match = HOST.exec(text)
  if (match === null || text.length > HOST_MAX_CHARS) return false
  const port = match.groups?.['port']
  return port === undefined || (Number(port) >= 1 && Number(port) <= PORT_MAX)
}
