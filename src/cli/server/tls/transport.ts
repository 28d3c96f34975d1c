import { X509Certificate } from 'node:crypto'
import type { Server as TlsServer } from 'node:tls'
import type { Config } from '../../../config.ts'
import { isLoopbackName } from '../../../domain/network/loopback-name.ts'
import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import { hostOfUrl } from '../../../lib/outbound/resolved-hosts.ts'
import { publicKeyFingerprint } from '../../../lib/self-signed-certificate.ts'
import { printStatus } from '../../print-status.ts'
import { readPair } from './read-pair.ts'
import { openOwnCertificate, ownCertificateFile, type OwnCertificateDeps, type TlsPair } from './tls-identity.ts'

/** How the API is served: in plain HTTP, or by TLS with a given certificate or the installation's own. */
export type Transport =
  | { readonly kind: 'plain' }
  | {
      readonly kind: 'tls'
      /** The certificate and key of new connections. */
      pair(): TlsPair
      /** The SHA-256 of the public key of `pair`, in hex. */
      fingerprint(): string
      /** The file with the certificate if it is the installation's own. Null: it was given. */
      readonly ownFile: string | null
      /** Uses changed files for new connections of the server, until the signal aborts. Never rejects. */
      keepReloaded(server: TlsServer, signal: AbortSignal): Promise<void>
    }

type TransportDeps = OwnCertificateDeps & {
  readonly clock: Clock
  readonly log: Log
  /** How often the files are read, in milliseconds. */
  readonly reloadEveryMs?: number
}

const RELOAD_EVERY_MS = 2_000

type TransportSettings = Pick<Config, 'host' | 'advertiseUrl' | 'tlsCert' | 'tlsKey' | 'insecure'>

/**
 * Chooses how the API is served. Beyond loopback, it is encrypted unless the operator demands plain HTTP. Throws if the
 * files can't be used.
 */
export async function openTransport(settings: TransportSettings, deps: TransportDeps): Promise<Transport> {
  const { host, advertiseUrl, tlsCert, tlsKey, insecure } = settings
  if (tlsCert !== null && tlsKey !== null) return openReloaded(() => readPair(tlsCert, tlsKey), { ownFile: null }, deps)
  if (isLoopbackName(host)) return { kind: 'plain' }
  if (insecure) {
    printStatus(
      `WARNING: the API listens on ${host} WITHOUT ENCRYPTION, because of --insecure or SANDYARD_INSECURE. ` +
        'Anyone on the network path can read and change keys, commands and secrets',
    )
    deps.log.warn({ host }, 'the API listens beyond loopback in plain HTTP')
    return { kind: 'plain' }
  }
  const readOwn = openOwnCertificate(deps, [host, advertiseUrl].flatMap(nameIn))
  return openReloaded(readOwn, { ownFile: ownCertificateFile(deps.folder.path) }, deps)
}

async function openReloaded(
  readFiles: () => Promise<TlsPair>,
  { ownFile }: { readonly ownFile: string | null },
  { clock, log, reloadEveryMs = RELOAD_EVERY_MS }: TransportDeps,
): Promise<Transport> {
  let pair = await readFiles()
  let refused = ''
  const reload = async (server: TlsServer): Promise<void> => {
    try {
      const read = await readFiles()
      refused = ''
      if (read.cert === pair.cert && read.key === pair.key) return
      server.setSecureContext(read) // open connections keep the certificate that they began with
      pair = read
      log.info({ fingerprint: fingerprintOf(pair) }, 'the TLS certificate was reloaded')
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error)
      if (why !== refused)
        log.error({ error }, `the changed TLS certificate can't be used; the previous one stays: ${why}`)
      refused = why
    }
  }
  return {
    kind: 'tls',
    pair: () => pair,
    fingerprint: () => fingerprintOf(pair),
    ownFile,
    // Reading twice a few KiB finds every kind of change: a new file, a renamed folder, a changed symbolic link.
    async keepReloaded(server, signal) {
      while (!signal.aborted) {
        await interruptibleSleep(clock, reloadEveryMs, signal)
        if (!signal.aborted) await reload(server)
      }
    },
  }
}

function fingerprintOf({ cert }: TlsPair): string {
  return publicKeyFingerprint(new X509Certificate(cert).publicKey)
}

const WILDCARDS = ['0.0.0.0', '::']

/** The name or address in a host or a URL, as a list. Empty for one that names no machine. */
function nameIn(text: string | null): readonly string[] {
  if (text === null || WILDCARDS.includes(text)) return []
  return [hostOfUrl(text) ?? text]
}
