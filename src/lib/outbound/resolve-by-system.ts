import { lookup } from 'node:dns/promises'

/** The addresses of a host, as this machine's resolver tells them. Rejects if there is none. */
export async function resolveBySystem(name: string): Promise<readonly string[]> {
  return (await lookup(name, { all: true })).map(({ address }) => address)
}
