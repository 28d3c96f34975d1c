// `node packaging/container/make-image.mjs LAYOUT DEB` makes an OCI image layout in the folder LAYOUT, with the tag
// `latest`. DEB is the package that `packaging/deb/make-deb.mjs` makes; apt installs it on a minimal Debian. The script
// needs root, mmdebstrap and umoci, and no daemon.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { run, version } from '../program-tree.mjs'

const [layout, deb] = process.argv.slice(2)
if (layout === undefined || deb === undefined)
  throw new Error('give a folder and a package: node packaging/container/make-image.mjs LAYOUT DEB')
/** The release of Debian that the image has. */
const suite = 'bookworm'
/** The user of the embedded PostgreSQL, and of a server without privileges. */
const userId = 65532
const workFolder = mkdtempSync(join(tmpdir(), 'sandyard-image-'))
try {
  const rootfs = join(workFolder, 'rootfs')
  makeRootfs(rootfs)
  makeLayout(rootfs)
} finally {
  rmSync(workFolder, { recursive: true })
}

function makeRootfs(rootfs) {
  const folders = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*']
  run('mmdebstrap', [
    '--mode=root',
    '--variant=essential',
    '--format=directory',
    // makes the package's file visible to apt in the new root file system
    '--hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount',
    '--aptopt=APT::Install-Recommends "false"',
    ...folders.map((folder) => `--dpkgopt=path-exclude=${folder}`),
    `--include=${resolve(deb)}`,
    `--customize-hook=chroot "$1" useradd --uid ${userId} --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin sandyard`,
    suite,
    rootfs,
  ])
}

function makeLayout(rootfs) {
  const image = `${resolve(layout)}:latest`
  run('umoci', ['init', `--layout=${resolve(layout)}`])
  run('umoci', ['new', `--image=${image}`])
  run('umoci', ['insert', `--image=${image}`, rootfs, '/'])
  const settings = {
    // Node reaps no orphans as process 1. The shims of sandboxes become orphans when the server restarts its launcher.
    entrypoint: ['/usr/bin/catatonit', '--', '/usr/bin/sandyard'],
    cmd: ['up'],
    env: [
      'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
      'SANDYARD_DATA_DIR=/var/lib/sandyard',
      'SANDYARD_HOST=0.0.0.0',
      'SANDYARD_SHUTDOWN=stop', // the end of a container kills what runs in it
    ],
    volume: ['/var/lib/sandyard'],
    exposedports: ['8080/tcp'],
    label: [`org.opencontainers.image.title=Sandyard`, `org.opencontainers.image.version=${version}`],
  }
  const flags = Object.entries(settings).flatMap(([name, values]) => values.map((value) => `--config.${name}=${value}`))
  run('umoci', ['config', `--image=${image}`, ...flags])
  run('umoci', ['gc', `--layout=${resolve(layout)}`])
  const { manifests } = JSON.parse(readFileSync(join(resolve(layout), 'index.json'), 'utf8'))
  console.log(manifests[0].digest)
}
