// `node setup/engines/product-image.mjs NAME` makes the container image of this checkout with the name NAME, as packaging/ makes
// it, and prints the path of its archive (an OCI layout in tar). The Debian package lies beside it, with the ending `.deb`. Both
// are made once for the same files.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { runMain, SetUpFailure } from '../say.mjs'
import { withSetUpLock } from '../set-up-lock.mjs'
import { engineFolder, run } from './engine-programs.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
/** Paths of files that are not in the image. */
const isLeftOut =
  /^(test|docs|bench|packaging\/(helm|nomad)|setup\/engines|\.ci)\/|\.md$|^(knip|\.oxlintrc|\.prettierrc)\.json$/

await runMain(() => {
  const [name] = process.argv.slice(2)
  if (name === undefined) throw new SetUpFailure('give the name of the image')
  const files = listFiles()
  const folder = engineFolder(root, 'images')
  const archive = join(
    folder,
    `${hashOf([Buffer.from(name), ...files.map((file) => readFileSync(join(root, file)))])}.tar`,
  )
  if (!existsSync(archive))
    withSetUpLock(`${folder}.lock`, () => {
      if (existsSync(archive)) return
      rmSync(folder, { recursive: true, force: true }) // those of earlier states of the checkout
      mkdirSync(folder, { recursive: true })
      make(archive, name, files)
    })
  console.log(archive)
  return 0
})

function listFiles() {
  const args = ['ls-files', '-z', '--cached', '--others', '--exclude-standard']
  const { status, stdout } = spawnSync('git', args, { cwd: root, encoding: 'utf8' })
  if (status !== 0) throw new SetUpFailure('git could not list the files of the checkout')
  return stdout.split('\0').filter((file) => file !== '' && existsSync(join(root, file)) && !isLeftOut.test(file))
}

function hashOf(contents) {
  const hash = createHash('sha256')
  for (const content of contents) hash.update(content)
  return hash.digest('hex').slice(0, 16)
}

function make(archive, name, files) {
  const work = mkdtempSync(join(tmpdir(), 'sandyard-product-image-'))
  try {
    const project = join(work, 'project')
    const more = readdirSync(root).filter((file) => file.endsWith('.md')) // packed, but no reason for another image
    for (const file of [...files, ...more]) {
      mkdirSync(dirname(join(project, file)), { recursive: true })
      cpSync(join(root, file), join(project, file))
    }
    // Installed packages of the same lock file are as good as new ones, and take seconds instead of minutes.
    run('cp', ['-a', realpathSync(join(root, 'node_modules')), join(project, 'node_modules')])
    const script = (...args) => run(process.execPath, args, { cwd: project })
    script('packaging/deb/make-deb.mjs', work)
    const deb = readdirSync(work).find((file) => file.endsWith('.deb'))
    cpSync(join(work, deb), archive.replace(/tar$/, 'deb'))
    const layout = join(work, 'layout')
    script('packaging/container/make-image.mjs', layout, join(work, deb))
    const index = JSON.parse(readFileSync(join(layout, 'index.json'), 'utf8'))
    for (const manifest of index.manifests)
      manifest.annotations = { ...manifest.annotations, 'io.containerd.image.name': name }
    writeFileSync(join(layout, 'index.json'), JSON.stringify(index))
    run('tar', ['-C', layout, '-cf', `${archive}.making`, '.'])
    renameSync(`${archive}.making`, archive)
  } finally {
    rmSync(work, { recursive: true })
  }
}
