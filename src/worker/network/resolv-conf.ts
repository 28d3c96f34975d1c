import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'

/** The resolvers that a resolv.conf names, in order; a zone id (`%eth0`) is kept. */
export function parseResolvConf(text: string): readonly string[] {
  return text
    .split('\n')
    .map((line) => /^nameserver\s+(\S+)/.exec(line.trim())?.[1] ?? '')
    .filter((address) => isIP(address) !== 0)
}

/** The host's resolvers, from /etc/resolv.conf; what a resolver on the host's loopback gives out is fine too. */
export async function readHostResolvers(): Promise<readonly string[]> {
  return parseResolvConf(await readFile('/etc/resolv.conf', 'utf8'))
}
