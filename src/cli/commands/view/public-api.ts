import { join } from 'node:path'
import type { Config } from '../../../config.ts'
import { readLiveReplicas } from '../../../control/workers/replicas.ts'
import { readFileOrNull } from '../../../lib/files.ts'
import { makePinnedTls, PinMismatch } from '../../../worker/agent/pinned-tls.ts'
import { ownFingerprint } from '../../server/tls/tls-identity.ts'
import { UsageError, type Call } from '../../command.ts'
import type { OperatorDeps } from '../operator.ts'

// Operator commands that need a worker ask a running server, by the public API, as any client does.

/** A request to the public API of a running server. */
export type PublicApi = {
  readonly get: (
    path: string,
    request: { readonly headers: Readonly<Record<string, string>>; readonly signal: AbortSignal },
  ) => Promise<Response>
}

/**
 * Finds a running server: the one of `--url`, or else the one that joined the database first. Throws if none runs. It accepts
 * the installation's own certificate by its key. Any other certificate must be valid for the name in the URL.
 */
export async function findPublicApi(deps: Pick<OperatorDeps, 'db' | 'clock'>, call: Call): Promise<PublicApi> {
  const base = call.texts['url'] ?? (await liveUrl(deps, call.config))
  if (!URL.canParse(base) || !/^https?:$/.test(new URL(base).protocol))
    throw new UsageError(`--url is "${base}"; accepted: http:// or https:// with a host`)
  const pin = await readPin(call.config)
  return {
    async get(path, { headers, signal }) {
      const url = new URL(path, base)
      try {
        if (url.protocol === 'https:' && pin !== null)
          return await makePinnedTls(() => pin).send(url, { method: 'GET', headers, body: '', signal })
      } catch (error) {
        if (!(error instanceof PinMismatch)) throw unreachable(base, error)
      }
      try {
        return await fetch(url, { headers, signal, redirect: 'error' })
      } catch (error) {
        throw unreachable(base, error)
      }
    },
  }
}

/** The URL of a running server: that of `--url`, or else of the one that joined the database first. Null if none runs. */
export async function findServerUrl(
  deps: Pick<OperatorDeps, 'db' | 'clock'>,
  { texts, config }: Pick<Call, 'texts' | 'config'>,
): Promise<string | null> {
  if (texts['url'] !== undefined) return texts['url'].replace(/\/$/, '')
  const replicas = await readLiveReplicas(deps)
  return replicas.length === 0 ? null : urlOf(replicas, config)
}

type LiveReplicas = Awaited<ReturnType<typeof readLiveReplicas>>

/** A server that listens on all addresses knows no URL of its own, but it is on this machine or names one by a setting. */
function urlOf(replicas: LiveReplicas, config: Pick<Config, 'insecure' | 'port'>): string {
  const named = replicas.find(({ url }) => url !== null)?.url ?? null
  return named ?? `${config.insecure ? 'http' : 'https'}://127.0.0.1:${String(config.port)}`
}

async function liveUrl(deps: Pick<OperatorDeps, 'db' | 'clock'>, config: Config): Promise<string> {
  const replicas = await readLiveReplicas(deps)
  if (replicas.length === 0)
    throw new Error(
      'no server runs on this database, and only a server reaches the workers: start `sandyard up` or `sandyard serve`. ' +
        `The log files of a machine's sandboxes are in the folder logs of its data folder, such as ${join(config.dataDir, 'logs')}`,
    )
  return urlOf(replicas, config)
}

/** The fingerprint of the installation's own key. Null: this machine has no key of the installation. */
async function readPin({ secretKey, dataDir }: Config): Promise<string | null> {
  const sealingKey = secretKey ?? (await readFileOrNull(join(dataDir, 'sealing.key')))
  return sealingKey === null ? null : ownFingerprint(Buffer.from(sealingKey, 'base64'))
}

function unreachable(base: string, cause: unknown): Error {
  return new Error(`the server at ${base} can't be reached; name another one by --url`, { cause })
}

/** The JSON of a reply. Throws with the server's words if it refused. */
export async function readJsonReply(reply: Response): Promise<unknown> {
  const text = await reply.text()
  if (!reply.ok) throw new Error(`the server refused: ${describeRefusal(reply.status, text)}`)
  return JSON.parse(text)
}

/** The words of a refusal, or its status. */
export function describeRefusal(status: number, text: string): string {
  try {
    const { error }: { readonly error: { readonly message: string } } = JSON.parse(text)
    return error.message
  } catch {
    return `status ${String(status)}`
  }
}
