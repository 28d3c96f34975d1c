import { Client } from 'pg'
import type { Cloud } from './cloud.ts'

/** A connection to the embedded server of a cloud, as its superuser: past row-level security, for filling tables. */
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
