// The programs of engines: taken from an archive that was built before, or built from Go modules.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { aptGetFresh } from '../apt-get.mjs'
import { findProgram } from '../find-program.mjs'
import { say, SetUpFailure } from '../say.mjs'
import { withSetUpLock } from '../set-up-lock.mjs'

/**
 * Lists the folders that may have archives of built programs. SANDYARD_ENGINES_CACHE names another folder than those
 * beside the checkout.
 */
function archiveFolders(root) {
  const given = process.env.SANDYARD_ENGINES_CACHE
  return given === undefined ? [resolve(root, '../shared/engines/bin')] : [resolve(given)]
}

/** The archive of an engine's built programs, or undefined if there is none. */
export function findArchive(root, name) {
  return archiveFolders(root)
    .map((folder) => join(folder, `${name}.tar.xz`))
    .find((file) => existsSync(file))
}

/** The folder of the project in which an engine's programs are kept. */
export function engineFolder(root, name) {
  return join(root, '.setup', 'engines', name)
}

/**
 * Makes a folder with `bin/`, once: from the archive of this name if there is one, else by `build(folder)`. With
 * SANDYARD_ENGINES_CACHE, a build is packed for the next checkout.
 */
export function ensurePrograms(root, { name, archive, takes, build }) {
  const folder = engineFolder(root, name)
  if (existsSync(join(folder, 'bin'))) return folder
  return withSetUpLock(`${folder}.lock`, () => {
    if (existsSync(join(folder, 'bin'))) return folder
    const making = `${folder}.making`
    mkdirSync(making, { recursive: true }) // an interrupted build goes on with what Go has cached
    const packed = findArchive(root, archive)
    if (packed === undefined) {
      say(`building ${name} from Go modules; this takes ${takes} on two cores, once`)
      rmSync(join(making, 'bin'), { recursive: true, force: true })
      build(making)
      pack(making, archive)
    } else run('tar', ['-C', making, '-xf', packed])
    rmSync(folder, { recursive: true, force: true })
    renameSync(making, folder)
    return folder
  })
}

function pack(folder, archive) {
  const cache = process.env.SANDYARD_ENGINES_CACHE
  if (cache === undefined) return
  mkdirSync(cache, { recursive: true })
  const file = join(resolve(cache), `${archive}.tar.xz`)
  run('tar', ['-C', folder, '-I', 'xz -T0 -3', '-cf', `${file}.making`, 'bin'])
  renameSync(`${file}.making`, file)
}

/** Unpacks Debian packages into `folder/root`, once. Nothing is installed on this machine. */
export function ensureDebianFiles(folder, packages) {
  const to = join(folder, 'root')
  const mark = join(folder, `unpacked ${packages.join(' ')}`)
  if (existsSync(mark)) return to
  const downloads = join(folder, 'debs')
  for (const one of [downloads, to]) mkdirSync(one, { recursive: true })
  const failure = aptGetFresh(['download', '-o', 'APT::Sandbox::User=root', ...packages], { cwd: downloads })
  if (failure !== undefined) throw new SetUpFailure(`${packages.join(', ')} could not be fetched:\n${failure}`)
  run('sh', ['-c', 'for deb in "$0"/*.deb; do dpkg-deb -x "$deb" "$1"; done', downloads, to])
  rmSync(downloads, { recursive: true })
  mkdirSync(mark)
  return to
}

/** Runs `go` with low priority. Throws SetUpFailure if it is missing or fails. */
export function go(args, { cwd, env }) {
  const program = findGo()
  if (program === undefined) throw new SetUpFailure('Go is missing (1.24 or newer), which builds the engine')
  run('nice', ['-n', '10', program, ...args], { cwd, env: { GOFLAGS: '-mod=mod', ...env } })
}

/** Finds the Go command on the PATH or where its installer puts it. */
export function findGo() {
  return findProgram('go') ?? ['/usr/local/go/bin/go'].find((file) => existsSync(file))
}

/** Runs a program, whose output goes to standard error. Throws SetUpFailure if it fails. */
export function run(program, args, { cwd, env = {} } = {}) {
  const { status, error } = spawnSync(program, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', process.stderr.fd, process.stderr.fd],
  })
  if (status !== 0) throw new SetUpFailure(`${program} ${args.join(' ')} failed${error ? `: ${error.message}` : ''}`)
}

/** Builds Helm, once. */
export function ensureHelm(root) {
  const version = 'v3.19.5'
  const folder = ensurePrograms(root, {
    name: `helm-${version}`,
    archive: 'helm',
    takes: '4 minutes',
    build: (making) =>
      go(['install', '-trimpath', '-ldflags=-s -w', `helm.sh/helm/v3/cmd/helm@${version}`], {
        cwd: making,
        env: { GOBIN: join(making, 'bin'), CGO_ENABLED: '0', GOFLAGS: '' },
      }),
  })
  return join(folder, 'bin', 'helm')
}
