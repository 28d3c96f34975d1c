// `node packaging/deb/make-deb.mjs FOLDER [TARBALL]` makes the Debian package of this machine's architecture in FOLDER,
// and prints its path. TARBALL is the npm package; without it, the script packs one. It needs dpkg-deb and npm.
import { execFileSync } from 'node:child_process'
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { systemPackages } from '../../setup/system-packages.mjs'
import { makeProgramTree, root, run, version } from '../program-tree.mjs'

const [folder, tarball] = process.argv.slice(2)
if (folder === undefined) throw new Error('give the folder for the package: node packaging/deb/make-deb.mjs FOLDER')
const workFolder = mkdtempSync(join(tmpdir(), 'sandyard-deb-'))
try {
  console.log(makeDeb())
} finally {
  rmSync(workFolder, { recursive: true })
}

function makeDeb() {
  const tree = join(workFolder, 'tree')
  makeProgramTree(tree, { tarball: tarball === undefined ? undefined : resolve(tarball), workFolder })
  copySystemdFiles(tree)
  copyMonitoringFiles(tree)
  const architecture = execFileSync('dpkg', ['--print-architecture'], { encoding: 'utf8' }).trim()
  writeControlFiles(tree, architecture)
  mkdirSync(folder, { recursive: true })
  const to = join(resolve(folder), `sandyard_${debianVersion()}_${architecture}.deb`)
  run('dpkg-deb', ['--root-owner-group', '-Zzstd', '--build', tree, to])
  return to
}

function copySystemdFiles(tree) {
  const units = join(tree, 'usr', 'lib', 'systemd', 'system')
  const settings = join(tree, 'etc', 'sandyard')
  for (const path of [units, settings]) mkdirSync(path, { recursive: true })
  const source = join(root, 'packaging', 'systemd')
  for (const name of readdirSync(source)) {
    const to = join(name.endsWith('.service') ? units : settings, name)
    cpSync(join(source, name), to)
    chmodSync(to, name.endsWith('.service') ? 0o644 : 0o600) // the settings have passwords
  }
}

/** The alert rules for Prometheus and the dashboard for Grafana, for operators to copy. */
function copyMonitoringFiles(tree) {
  for (const name of ['prometheus', 'grafana'])
    cpSync(join(root, 'packaging', name), join(tree, 'usr', 'share', 'sandyard', name), { recursive: true })
}

function writeControlFiles(tree, architecture) {
  const control = join(tree, 'DEBIAN')
  mkdirSync(control)
  const source = join(root, 'packaging', 'deb')
  const depends = ['libc6', 'libstdc++6', 'ca-certificates', 'mount', 'passwd', ...systemPackages()]
  const values = { VERSION: debianVersion(), ARCHITECTURE: architecture, DEPENDS: depends.join(', ') }
  const template = readFileSync(join(source, 'control'), 'utf8')
  writeFileSync(
    join(control, 'control'),
    template.replaceAll(/@(\w+)@/g, (_, name) => values[name]),
  )
  for (const name of ['postinst', 'prerm', 'postrm']) {
    cpSync(join(source, name), join(control, name))
    chmodSync(join(control, name), 0o755)
  }
  const settings = readdirSync(join(tree, 'etc', 'sandyard')).map((name) => `/etc/sandyard/${name}\n`)
  writeFileSync(join(control, 'conffiles'), settings.join(''))
}

/** In Debian's order, `~` comes before the release; npm writes `-` there. */
function debianVersion() {
  return version.replace('-', '~')
}
