import { posix } from 'node:path'
import { interceptionOf } from '../../../domain/spec/tls-interception.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { CA_BUNDLES, readCaBundle } from './ca-bundles.ts'
import { BlockedPathError, putText, type RootTree } from './root-tree.ts'
import { openInRoot, PathInRootError, resolveInRoot } from './resolve-in-root.ts'

const FOLDER = '/.msb/tls'
/** The certificates that a sandbox trusts beyond those of its image. */
const ADDED = posix.join(FOLDER, 'ca.pem')
/** The certificates of the image and the added ones. */
const ALL = posix.join(FOLDER, 'bundle.pem')
const [BEGIN, END] = [
  '# begin of the certificates that Sandyard adds\n',
  '# end of the certificates that Sandyard adds\n',
]
/** The largest bundle of an image that is read. Those of distributions have a quarter of a megabyte. */
const BUNDLE_MAX_BYTES = 4 * 1024 * 1024

/**
 * Makes the programs in a sandbox trust certificates: adds them to each bundle that the image has, and makes one if it has none.
 * The variables of `trustEnv` name the files for programs that don't read the bundle. May be repeated: the newest
 * certificates replace the earlier ones. Rejects with `BlockedPathError` if
 * a folder is at the path of a file, or a bundle is too large.
 *
 * @param certificates in PEM, one after the other
 */
export async function trustCertificates(tree: RootTree, certificates: string): Promise<void> {
  const added = `${BEGIN}${certificates.trimEnd()}\n${END}`
  const found = new Map<string, string>()
  for (const path of CA_BUNDLES) {
    const text = await readBundle(tree, path)
    if (text === null) continue
    // Some of these paths are links to another one. A link stays, and its target is written once.
    const { guestPath } = await resolveInRoot(tree.root, path)
    found.set(guestPath, `${withoutAdded(text)}${added}`)
  }
  const [first = added] = found.values()
  if (found.size === 0) found.set(CA_BUNDLES[0], added)
  found.set(ADDED, `${certificates.trimEnd()}\n`).set(ALL, first)
  for (const [path, text] of found) await putText(tree, path, { mode: 0o644, text })
}

/**
 * The environment variables by which programs find the certificates, as defaults for every process of a sandbox. Empty if the
 * spec asks for no certificates beyond those of the image.
 */
export function trustEnv(
  { network }: SandboxSpec,
  paths: TrustedFiles = { all: ALL, added: ADDED },
): SandboxSpec['env'] {
  if (network.trust_host_cas !== true && interceptionOf(network) === null) return []
  const all = ['SSL_CERT_FILE', 'CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'].map((key) => ({ key, value: paths.all }))
  return [...all, { key: 'NODE_EXTRA_CA_CERTS', value: paths.added }]
}

/** The paths in a sandbox of all certificates that it trusts, and of those that its image lacks. */
export type TrustedFiles = { readonly all: string; readonly added: string }

/**
 * The certificates that a run trusts beyond those of its image, in PEM: of the machine if the spec asks for them, and of the
 * authority that intercepts its TLS. Empty if there are none.
 */
export async function givenCertificates({ spec, interception = null }: DesiredRun): Promise<string> {
  const certificates = [
    ...(spec.network.trust_host_cas === true ? [await readCaBundle()] : []),
    ...(interception === null ? [] : [interception.authority.certificate]),
  ]
  return certificates.map((pem) => `${pem.trimEnd()}\n`).join('')
}

function withoutAdded(bundle: string): string {
  const [begin, end] = [bundle.indexOf(BEGIN), bundle.indexOf(END)]
  const kept = begin < 0 || end < begin ? bundle : bundle.slice(0, begin) + bundle.slice(end + END.length)
  return kept === '' || kept.endsWith('\n') ? kept : `${kept}\n`
}

/** Reads a bundle of the image. Null if there is none, or something that can't be one. */
async function readBundle({ root, isFresh = false }: RootTree, path: string): Promise<string | null> {
  try {
    await using handle = await openInRoot(root, path, { isFresh })
    const stat = await handle.stat()
    if (stat.size > BUNDLE_MAX_BYTES) throw new BlockedPathError(`'${path}' is larger than 4 MiB`)
    return stat.isFile() ? await handle.readFile('utf8') : null
  } catch (error) {
    if (error instanceof PathInRootError) return null
    throw error
  }
}
