import { mkdir, mkdtemp } from 'node:fs/promises'
import { join } from 'node:path'
import { readRegistryCertificate } from '../../src/cli/worker/registry-certificate.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { makeServedImages, type ServedImages } from '../../src/worker/drivers/kubernetes/served-images.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { collectFiles } from '../../src/worker/drivers/oci/rootfs/toolbox.ts'
import { NO_DISK_RESERVE } from '../../src/worker/disk-reserve.ts'
import { DEFAULT_IMAGE_LIMITS } from '../../src/worker/images/image.ts'
import { openLoadedImages, type LoadedImages } from '../../src/worker/registry/loaded-images.ts'
import { makePullAccess } from '../../src/worker/registry/pull-access.ts'
import { openRegistryServer } from '../../src/worker/registry/registry-server.ts'
import { makeToolboxImages, type ToolboxImages } from '../../src/worker/registry/toolbox-images.ts'
import { openToolboxLayer } from '../../src/worker/registry/toolbox-layer.ts'
import { trustRegistry } from './real-kubernetes.ts'
import { writeLayout, type TestImage } from './test-image.ts'

const NEVER = new AbortController().signal

/** A store of loaded images in a folder, as a worker opens it. */
export async function openTestLoadedImages(dir: string): Promise<LoadedImages> {
  return await openLoadedImages({
    dir,
    limits: DEFAULT_IMAGE_LIMITS,
    storeBytes: Number.POSITIVE_INFINITY,
    reserve: NO_DISK_RESERVE,
    defaultRegistry: 'docker.io',
    clock: systemClock,
    log: makeLog('silent'),
  })
}

/** The same images with this machine's toolbox, whose layer is in `folder`. */
export async function openTestToolboxImages(folder: string, images: LoadedImages): Promise<ToolboxImages> {
  const files = await collectFiles(DEFAULT_OCI_SETTINGS.initBinary)
  return makeToolboxImages(images, await openToolboxLayer(join(folder, 'toolbox.tar'), files))
}

/** Loads an image from memory under a reference. `folder` gets its files. */
export async function loadTestImage(
  { folder, images }: { readonly folder: string; readonly images: LoadedImages },
  image: TestImage,
  reference: string,
): Promise<void> {
  const layout = await mkdtemp(join(folder, 'layout-'))
  await writeLayout(image, layout)
  await images.load(layout, reference, NEVER)
}

/** The registry of a worker, which the node of the tests' cluster trusts. */
type ServedOnNode = { readonly images: LoadedImages; readonly served: ServedImages; close(): Promise<void> }

/** The address of the node, in whose network this process runs. */
const NODE = '10.244.0.1'

/** Serves images to the node of the real cluster. `localhost/box:1` is loaded. */
export async function serveOnNode(folder: string): Promise<ServedOnNode> {
  const dir = join(folder, 'registry')
  await mkdir(dir)
  const images = await openTestLoadedImages(join(dir, 'images'))
  const toolbox = await openTestToolboxImages(dir, images)
  const archive = join(folder, 'served-box.tar')
  // Through the transfer API, `ctr` may end before the end of the archive is in the file: seen under load.
  await runCommand('ctr', ['images', 'export', '--local', archive, 'localhost/box:1'], { timeoutMs: 120_000 })
  await images.load(archive, 'localhost/box:1', NEVER)
  const access = makePullAccess(systemRandom.bytes(32))
  const tls = await readRegistryCertificate({ clock: systemClock, random: systemRandom, dir }, NODE)
  const log = makeLog('silent')
  const server = await openRegistryServer({ images: toolbox, access, tls, host: NODE, port: 0, log })
  const address = `${NODE}:${String(server.port)}`
  await trustRegistry(address, tls.cert)
  return {
    images,
    served: makeServedImages({ images, toolbox, access, address }),
    close: () => server.close(),
  }
}
