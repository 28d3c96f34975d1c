import { Client } from 'pg'
import type { Cloud } from './cloud.ts'

/**
 * Connects to a cloud's embedded server as its superuser, in order to fill tables. The superuser bypasses row-level
 * security.
 */
export async function connectAdmin(cloud: Cloud): Promise<Client> {
  const env = await cloud.adminEnv()
  const client = new Client({
    host: env['PGHOST'] ?? '',
    port: Number(env['PGPORT']),
    database: env['PGDATABASE'] ?? '',
    user: env['PGUSER'] ?? '',
    password: env['PGPASSWORD'] ?? '',
  })
  await client.connect()
  return client
}
