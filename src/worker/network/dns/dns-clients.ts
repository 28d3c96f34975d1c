import type { Socket } from 'node:net'

/** The open TCP connections of sandboxes to the DNS forwarder. */
export type DnsClients = {
  /** Adds a connection of a sandbox. Destroys an older one if there are too many. */
  add(source: string, client: Socket): void
  /** Destroys all connections. */
  close(): void
}

/**
 * Creates the list. Beyond `perSource` connections of a sandbox, its oldest is destroyed. Beyond `inAll`, the oldest of
 * the sandbox with the most is destroyed, so that a sandbox with few keeps them.
 */
export function makeDnsClients(limits: { readonly perSource: number; readonly inAll: number }): DnsClients {
  const sources = new Map<string, Set<Socket>>()
  let count = 0

  function remove(source: string, client: Socket): void {
    const clients = sources.get(source)
    if (clients?.delete(client) !== true) return
    count -= 1
    if (clients.size === 0) sources.delete(source)
  }

  function destroyOldest(source: string): void {
    const oldest = sources.get(source)?.values().next().value
    if (oldest === undefined) return
    remove(source, oldest)
    oldest.destroy()
  }

  function largest(): string {
    return [...sources].reduce((most, one) => (one[1].size > most[1].size ? one : most), ['', new Set<Socket>()])[0]
  }

  return {
    add(source, client) {
      const clients = sources.get(source) ?? new Set()
      sources.set(source, clients.add(client))
      count += 1
      client.on('close', () => {
        remove(source, client)
      })
      if (clients.size > limits.perSource) destroyOldest(source)
      else if (count > limits.inAll) destroyOldest(largest())
    },
    close() {
      for (const clients of sources.values()) for (const client of clients) client.destroy()
    },
  }
}
