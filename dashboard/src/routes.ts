import type { ComponentType } from 'preact'
import { match } from './lib/router.ts'

/** The named parts of a pattern, such as `id`. */
export type PageParts = { readonly id?: string; readonly tab?: string }
export type PageModule = { readonly default: ComponentType<PageParts> }

export type Route = {
  readonly pattern: string
  readonly load: () => Promise<PageModule>
  /** The name in the navigation. Absent: other pages lead to it. */
  readonly title?: string
  readonly group?: 'Work' | 'Organization' | 'Server'
  /** The scope that the page needs. Absent: `read`. */
  readonly needs?: 'admin' | 'operator'
}

const sandbox = (): Promise<PageModule> => import('./pages/sandbox/sandbox.tsx')

/** Every page. The code of a page is loaded when it is opened. */
export const ROUTES: readonly Route[] = [
  { pattern: '', title: 'Sandboxes', group: 'Work', load: () => import('./pages/sandboxes.tsx') },
  { pattern: '/sandboxes/new', load: () => import('./pages/create/create.tsx') },
  { pattern: '/sandboxes/:id', load: sandbox },
  { pattern: '/sandboxes/:id/:tab', load: sandbox },
  { pattern: '/volumes', title: 'Volumes', group: 'Work', load: () => import('./pages/volumes.tsx') },
  { pattern: '/volumes/:id', load: () => import('./pages/volume.tsx') },
  { pattern: '/usage', title: 'Usage', group: 'Organization', load: () => import('./pages/usage.tsx') },
  { pattern: '/quotas', title: 'Quotas', group: 'Organization', load: () => import('./pages/quotas.tsx') },
  { pattern: '/keys', title: 'Keys', group: 'Organization', needs: 'admin', load: () => import('./pages/keys.tsx') },
  { pattern: '/members', title: 'Members', group: 'Organization', load: () => import('./pages/members.tsx') },
  { pattern: '/ssh-keys', title: 'SSH keys', group: 'Organization', load: () => import('./pages/ssh-keys.tsx') },
  {
    pattern: '/registries',
    title: 'Registries',
    group: 'Organization',
    needs: 'admin',
    load: () => import('./pages/registries.tsx'),
  },
  {
    pattern: '/webhooks',
    title: 'Webhooks',
    group: 'Organization',
    needs: 'admin',
    load: () => import('./pages/webhooks.tsx'),
  },
  { pattern: '/webhooks/:id', needs: 'admin', load: () => import('./pages/webhook.tsx') },
  { pattern: '/sessions', load: () => import('./pages/sessions.tsx') },
  {
    pattern: '/installation',
    title: 'Installation',
    group: 'Server',
    needs: 'operator',
    load: () => import('./pages/installation/installation.tsx'),
  },
  { pattern: '/audit', title: 'Audit', group: 'Organization', load: () => import('./pages/audit.tsx') },
]

/** The route of a path with the parts of the path, or null. */
export function routeOf(path: string): { readonly route: Route; readonly parts: PageParts } | null {
  for (const route of ROUTES) {
    const parts = match(route.pattern, path)
    if (parts !== null) return { route, parts }
  }
  return null
}
