import { networkInterfaces } from 'node:os'

/** The addresses of this machine, loopback left out. */
export function hostAddresses(): readonly string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .filter(({ internal }) => !internal)
    .map(({ address }) => address)
}
