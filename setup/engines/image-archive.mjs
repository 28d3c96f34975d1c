import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { run } from './engine-programs.mjs'

/**
 * Makes an archive of an image with one layer, which `ctr images import` takes, once. `files` are paths in the image with the
 * files of this machine that they are copies of. With `busybox`, all its programs are there.
 */
export function makeImageArchive(archive, { name, files, busybox, config }) {
  if (existsSync(archive)) return
  const work = mkdtempSync(join(tmpdir(), 'sandyard-image-'))
  try {
    const rootfs = join(work, 'rootfs')
    for (const folder of ['etc', 'root', 'tmp', 'proc', 'sys', 'dev', 'var'])
      mkdirSync(join(rootfs, folder), { recursive: true })
    chmodSync(join(rootfs, 'tmp'), 0o1777) // sandboxes that are Pods aren't root
    writeFileSync(
      join(rootfs, 'etc/passwd'),
      'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n',
    )
    writeFileSync(join(rootfs, 'etc/group'), 'root:x:0:\nnogroup:x:65534:\n')
    for (const [path, source] of Object.entries(files)) {
      mkdirSync(dirname(join(rootfs, path)), { recursive: true })
      copyFileSync(source, join(rootfs, path))
    }
    if (busybox !== undefined) linkPrograms(busybox, join(rootfs, 'bin'))
    writeLayout(work, rootfs, { name, config })
    run('tar', ['-C', join(work, 'layout'), '-cf', `${archive}.making`, '.'])
    run('mv', [`${archive}.making`, archive])
  } finally {
    rmSync(work, { recursive: true })
  }
}

function linkPrograms(busybox, folder) {
  const { stdout } = spawnSync(busybox, ['--list'], { encoding: 'utf8' })
  for (const program of stdout.split('\n'))
    if (program !== '' && program !== 'busybox') symlinkSync('busybox', join(folder, program))
}

function writeLayout(work, rootfs, { name, config }) {
  const layout = join(work, 'layout')
  mkdirSync(join(layout, 'blobs/sha256'), { recursive: true })
  const put = (bytes) => {
    const hex = createHash('sha256').update(bytes).digest('hex')
    writeFileSync(join(layout, 'blobs/sha256', hex), bytes)
    return { digest: `sha256:${hex}`, size: bytes.length }
  }
  const putJson = (value) => put(Buffer.from(JSON.stringify(value)))
  const layerFile = join(work, 'layer.tar')
  run('tar', [
    '-C',
    rootfs,
    '--owner=0',
    '--group=0',
    '--numeric-owner',
    '--mtime=@0',
    '--mode=u+rwX,go+rX',
    '-cf',
    layerFile,
    '.',
  ])
  const layer = put(readFileSync(layerFile))
  const rootfsOfConfig = { type: 'layers', diff_ids: [layer.digest] }
  const described = putJson({ architecture: 'amd64', os: 'linux', config, rootfs: rootfsOfConfig })
  const media = 'application/vnd.oci.image'
  const manifest = putJson({
    schemaVersion: 2,
    mediaType: `${media}.manifest.v1+json`,
    config: { mediaType: `${media}.config.v1+json`, ...described },
    layers: [{ mediaType: `${media}.layer.v1.tar`, ...layer }],
  })
  const annotations = { 'io.containerd.image.name': name }
  const manifests = [{ mediaType: `${media}.manifest.v1+json`, ...manifest, annotations }]
  writeFileSync(join(layout, 'index.json'), JSON.stringify({ schemaVersion: 2, manifests }))
  writeFileSync(join(layout, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}')
}
