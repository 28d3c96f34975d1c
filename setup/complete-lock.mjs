// Run `node setup/complete-lock.mjs` after `npm install`. If a registry lacks packages for other platforms, npm leaves
// them out of package-lock.json, and `npm ci` then refuses the file. This script adds each missing package with the
// version that its dependent pins. npm skips such an entry because its platform differs. The entry has no hash; entries
// for linux-x64 and for all platforms have one.
import { readFileSync, writeFileSync } from 'node:fs'

const file = new URL('../package-lock.json', import.meta.url)
const systems = ['aix', 'android', 'darwin', 'freebsd', 'linux', 'netbsd', 'openbsd', 'openharmony', 'sunos', 'win32']
const processors = ['arm64', 'arm', 'ia32', 'loong64', 'mips64el', 'ppc64', 'riscv64', 's390x', 'x64']

const lock = JSON.parse(readFileSync(file, 'utf8'))
let added = 0
for (const entry of Object.values(lock.packages)) {
  for (const [name, version] of Object.entries(entry.optionalDependencies ?? {})) {
    if (Object.keys(lock.packages).some((path) => path.endsWith(`node_modules/${name}`))) continue
    const words = name.split(/[-/]/)
    const os = systems.filter((system) => words.includes(system))
    const cpu = processors.filter((processor) => words.includes(processor) || words.includes(`${processor}eabi`))
    lock.packages[`node_modules/${name}`] = {
      version,
      ...(entry.dev === true ? { dev: true } : {}),
      optional: true,
      ...(os.length === 0 ? {} : { os }),
      ...(cpu.length === 0 ? {} : { cpu }),
      ...(os.includes('linux') && /musl/.test(name) ? { libc: ['musl'] } : {}),
      ...(os.includes('linux') && /gnu/.test(name) ? { libc: ['glibc'] } : {}),
    }
    added += 1
  }
}
const sorted = Object.entries(lock.packages).sort(([left], [right]) => left.localeCompare(right, 'en'))
writeFileSync(file, `${JSON.stringify({ ...lock, packages: Object.fromEntries(sorted) }, null, 2)}\n`)
console.log(`completed package-lock.json: ${added} packages of other platforms added`)
