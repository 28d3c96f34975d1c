import type { ComponentType } from 'preact'
import type { Sandbox } from '../../lib/types.ts'

export type TabParts = { readonly sandbox: Sandbox }

type Tab = {
  /** The last part of the path. Empty: the first tab. */
  readonly name: string
  readonly title: string
  /** The scope that the tab needs. Absent: `read`. */
  readonly needs?: 'write'
  readonly load: () => Promise<{ readonly default: ComponentType<TabParts> }>
}

/** The parts of a sandbox's page. The command channel, which a terminal and files need, is for those who may write. */
export const TABS: readonly Tab[] = [
  { name: '', title: 'Overview', load: () => import('./overview.tsx') },
  { name: 'terminal', title: 'Terminal', needs: 'write', load: () => import('./terminal.tsx') },
  { name: 'files', title: 'Files', needs: 'write', load: () => import('./files.tsx') },
  { name: 'logs', title: 'Logs', load: () => import('./logs.tsx') },
  { name: 'ports', title: 'Ports', load: () => import('./ports.tsx') },
  { name: 'snapshots', title: 'Snapshots', load: () => import('./snapshots.tsx') },
  { name: 'specification', title: 'Specification', load: () => import('./specification.tsx') },
  { name: 'connect', title: 'Connect', load: () => import('./connect.tsx') },
]
