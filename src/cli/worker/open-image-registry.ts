import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { systemRandom } from '../../lib/random.ts'
import { readOrCreateFile } from '../../lib/read-or-create.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { collectFiles } from '../../worker/drivers/oci/rootfs/toolbox.ts'
import { makeServedImages, type ServedImages } from '../../worker/drivers/kubernetes/served-images.ts'
import { openLoadedImages, type LoadedImages } from '../../worker/registry/loaded-images.ts'
import { makePullAccess } from '../../worker/registry/pull-access.ts'
import { openRegistryServer } from '../../worker/registry/registry-server.ts'
import { makeToolboxImages, type ToolboxImages } from '../../worker/registry/toolbox-images.ts'
import { openToolboxLayer } from '../../worker/registry/toolbox-layer.ts'
import { printStatus } from '../print-status.ts'
import { openTransport } from '../server/tls/transport.ts'
import { readRegistryCertificate } from './registry-certificate.ts'
import { diskReserve, imageLimits, storeBytesOf } from './worker-storage.ts'

/** Whether images of this installation are kept to be served to a cluster: its worker unpacks none. */
export function servesImages({ driver }: Pick<Config, 'driver'>): boolean {
  return driver === 'kubernetes'
}

/** Opens the images that are served to the cluster. A worker and `sandyard image` may have them open at the same time. */
export async function openServedStore(config: Config, log: Log): Promise<LoadedImages> {
  const { defaultRegistry } = config
  const dir = join(registryFolder(config), 'images')
  await mkdir(dir, { recursive: true, mode: 0o700 })
  return await openLoadedImages({
    dir,
    limits: imageLimits(config),
    storeBytes: await storeBytesOf(config, dir),
    reserve: diskReserve(config),
    defaultRegistry,
    clock: systemClock,
    log,
  })
}

function registryFolder({ dataDir }: Pick<Config, 'dataDir'>): string {
  return join(dataDir, 'kubernetes', 'registry')
}

/** The registry of a worker's loaded images while it listens. */
type ImageRegistry = { readonly served: ServedImages; close(): Promise<void> }

/** Serves the loaded images to the cluster. Null if no setting says how its nodes reach the registry. Rejects if it can't listen. */
export async function openImageRegistry(config: Config, log: Log): Promise<ImageRegistry | null> {
  const { kubernetesRegistry: at, kubernetesRegistryListen: listen } = config
  if (at === null) return null
  const dir = registryFolder(config)
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const images = await openServedStore(config, log)
  await images.prune()
  const access = makePullAccess(await readSecret(join(dir, 'secret')))
  const { tls, keepReloaded } = await readTls(config, { dir, host: at.host, log })
  const toolbox = await openToolbox(dir, images, log)
  const address = `${at.host.includes(':') ? `[${at.host}]` : at.host}:${String(at.port)}`
  const server = await openRegistryServer({ images: toolbox ?? images, access, tls, ...listen, log })
  const closing = new AbortController()
  const reloading = keepReloaded(server.server, closing.signal)
  printStatus(`loaded images are served to the cluster as ${address}/…, on ${listen.host}:${String(server.port)}`)
  return {
    served: makeServedImages({ images, toolbox, access, address }),
    async close() {
      closing.abort(new Error('the registry is closed'))
      await reloading
      await server.close()
    },
  }
}

/**
 * The images with this machine's toolbox. Null, and a line in the log, if it has no programs for one: Pods then get
 * that of the helper image.
 */
async function openToolbox(dir: string, images: LoadedImages, log: Log): Promise<ToolboxImages | null> {
  try {
    const files = await collectFiles(DEFAULT_OCI_SETTINGS.initBinary)
    return makeToolboxImages(images, await openToolboxLayer(join(dir, 'toolbox.tar'), files))
  } catch (error) {
    log.warn({ error }, 'loaded images are served without the toolbox, so Pods take longer to start')
    return null
  }
}

type Tls = {
  readonly tls: { readonly cert: string; readonly key: string }
  readonly keepReloaded: Extract<Awaited<ReturnType<typeof openTransport>>, { kind: 'tls' }>['keepReloaded']
}

async function readTls(
  { kubernetesRegistryCert: tlsCert, kubernetesRegistryKey: tlsKey }: Config,
  { dir, host, log }: { readonly dir: string; readonly host: string; readonly log: Log },
): Promise<Tls> {
  const deps = { clock: systemClock, random: systemRandom, log }
  if (tlsCert !== null) {
    const folder = { path: dir, sealingKey: Buffer.alloc(0) } // of a certificate of its own, which is not made here
    const transport = await openTransport(
      { host, advertiseUrl: null, tlsCert, tlsKey, insecure: false },
      { ...deps, folder, index: 0 },
    )
    if (transport.kind !== 'tls') throw new Error('a given certificate is always used')
    return { tls: transport.pair(), keepReloaded: (server, signal) => transport.keepReloaded(server, signal) }
  }
  const own = await readRegistryCertificate({ ...deps, dir }, host)
  if (own.isNew) printStatus(`nodes must trust the new certificate of the registry: ${own.file}`)
  return { tls: own, keepReloaded: () => Promise.resolve() }
}

const SECRET_BYTES = 32

/** Reads the secret that credentials of the registry follow from, or makes it at the first start. */
async function readSecret(path: string): Promise<Buffer> {
  const make = (): string => systemRandom.bytes(SECRET_BYTES).toString('hex')
  const secret = Buffer.from(await readOrCreateFile(path, systemRandom, make), 'hex')
  if (secret.length !== SECRET_BYTES) throw new Error(`${path} is damaged: delete it, and a new one is made`)
  return secret
}
