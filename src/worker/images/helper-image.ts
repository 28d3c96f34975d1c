import { digestOf } from './blob.ts'
import { makeTar } from './make-tar.ts'
import { hostArchitecture } from './manifest.ts'

/** A file of the helper image. `name` is its path without the slash at the beginning. */
type HelperFile = { readonly name: string; readonly content: Buffer; readonly mode: number }

/**
 * Makes the archive of an image that has only these files, as an OCI image layout in a tar archive. The same files always make the same
 * image. `name` is the name that tools give it when they load the archive.
 */
export async function makeHelperImage(files: readonly HelperFile[], name: string): Promise<Buffer> {
  const sorted = files.toSorted((a, b) => (a.name < b.name ? -1 : 1))
  const layer = await makeTar(sorted)
  const config = json({
    architecture: hostArchitecture(),
    os: 'linux',
    config: {},
    rootfs: { type: 'layers', diff_ids: [digestOf(layer)] },
  })
  const manifest = json({
    schemaVersion: 2,
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    config: { mediaType: 'application/vnd.oci.image.config.v1+json', digest: digestOf(config), size: config.length },
    layers: [{ mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: digestOf(layer), size: layer.length }],
  })
  const index = json({
    schemaVersion: 2,
    manifests: [
      {
        mediaType: 'application/vnd.oci.image.manifest.v1+json',
        digest: digestOf(manifest),
        size: manifest.length,
        annotations: { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': name },
      },
    ],
  })
  return await makeTar([
    { name: 'oci-layout', content: json({ imageLayoutVersion: '1.0.0' }), mode: 0o644 },
    { name: 'index.json', content: index, mode: 0o644 },
    ...[config, manifest, layer].map((content) => ({
      name: `blobs/sha256/${digestOf(content).slice('sha256:'.length)}`,
      content,
      mode: 0o644,
    })),
  ])
}

function json(document: object): Buffer {
  return Buffer.from(JSON.stringify(document))
}
