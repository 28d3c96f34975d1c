import { readdir, readFile } from 'node:fs/promises'
import { extname, join } from 'node:path'
import type { Dashboard, DashboardFile } from '../../http/server/dashboard-routes.ts'

/** Where `setup/dashboard.mjs` and the npm package have the built dashboard. */
const FOLDER = join(import.meta.dirname, '../../../dist/dashboard')

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
}

/** Reads the built dashboard into memory: about 1 MB. Null if it wasn't built. */
export async function loadDashboard(folder = FOLDER): Promise<Dashboard | null> {
  const names: readonly string[] = await readdir(folder, { recursive: true }).catch(() => [])
  if (!names.includes('index.html')) return null
  const read = async (name: string): Promise<DashboardFile> => ({
    type: TYPES[extname(name)] ?? 'application/octet-stream',
    content: await readFile(join(folder, name)),
    br: names.includes(`${name}.br`) ? await readFile(join(folder, `${name}.br`)) : null,
    gzip: names.includes(`${name}.gz`) ? await readFile(join(folder, `${name}.gz`)) : null,
  })
  const assets = names.filter((name) => name.startsWith('assets/') && TYPES[extname(name)] !== undefined)
  const files = await Promise.all(assets.map(async (name) => [`/${name}`, await read(name)] as const))
  return { page: await read('index.html'), files: new Map(files) }
}
