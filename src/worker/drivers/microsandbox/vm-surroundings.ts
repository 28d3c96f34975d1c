/**
 * Where the runtime of a microVM runs: in the network namespace of the run, with the resolver of that network. The runtime opens
 * the connections of its guest as sockets of its own. There, the worker's router judges them as those of any sandbox.
 */
import { generateKeyPairSync } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Clock } from '../../../lib/clock.ts'
import type { Random } from '../../../lib/random.ts'
import { makeSelfSignedCertificate } from '../../../lib/self-signed-certificate.ts'
import type { SandboxNetwork } from '../../network/sandbox-network.ts'

/**
 * The network namespace to run in, the file to show as `/etc/resolv.conf`, and the file with the certificates that the runtime
 * takes for those of the machine. The guest trusts them.
 */
export type VmSurroundings = {
  readonly netnsPath: string
  readonly resolvConf: string
  readonly certificates: string
}

/** Writes the files of a run's surroundings into its folder. */
export async function prepareSurroundings(
  { netnsPath, resolvers }: Pick<SandboxNetwork, 'netnsPath' | 'resolvers'>,
  { folder, certificates }: { readonly folder: string; readonly certificates: string },
): Promise<VmSurroundings> {
  const paths = { resolvConf: join(folder, 'resolv.conf'), certificates: join(folder, 'certificates.pem') }
  await writeFile(paths.certificates, certificates, { mode: 0o644 })
  await writeFile(paths.resolvConf, resolvers.map((address) => `nameserver ${address}\n`).join(''), { mode: 0o644 })
  return { netnsPath, ...paths }
}

/**
 * Makes a certificate that no authority has and that no key can use. The runtime doesn't start without any (0.6.18), and a guest
 * must trust none of the machine's unless its spec asks for them.
 */
export function makeUselessCertificate({ clock, random }: { readonly clock: Clock; readonly random: Random }): string {
  const { privateKey: key } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const from = clock.now()
  const until = new Date(from.getTime() + USELESS_FOR_MS)
  return makeSelfSignedCertificate({ key, names: ['none.invalid'], from, until, serial: random.bytes(8) })
}

const USELESS_FOR_MS = 3_650 * 86_400_000

/**
 * The command line that runs a command in surroundings. Mounts of the machine stay visible in its mount namespace, so that they
 * can still be removed.
 */
export function inSurroundings(
  { netnsPath, resolvConf }: VmSurroundings,
  command: readonly string[],
): readonly string[] {
  const enter = ['nsenter', `--net=${netnsPath}`, 'unshare', '--mount', '--propagation', 'slave']
  return [...enter, 'sh', '-c', SHOW_AND_RUN, 'sh', resolvConf, ...command]
}

/** A machine without the file has no resolvers, and its sandboxes have none either. */
const SHOW_AND_RUN = '{ [ ! -e /etc/resolv.conf ] || mount --bind "$1" /etc/resolv.conf; } && shift && exec "$@"'
